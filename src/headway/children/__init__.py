"""The one way to run a helper process.

    this process                                        the helper
    Child(command) -- a socket, more descriptors -->    begin(fd): dies with its parent, leaves Ctrl-C to it
    Channel, LoopChannel  <---- frames, descriptors ---->  Channel
    create_memory, write_value  ---- a descriptor ----->   read_value
    Child.end: asks, waits, kills, reaps

What the frames say is up to whoever uses it: the roles of a run, environments, ranks of a learner, engines. channel.py
and in_child.py need the standard library alone, because an engine may run where Headway is not installed.
"""
