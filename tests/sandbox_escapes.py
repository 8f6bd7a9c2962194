"""Programs that want out of the Python sandbox, and a world outside that notices.

    python sandbox_escapes.py kernel|none root|nobody [NAME ...]  -->  for each program a line of JSON:
                                                                       name, end, text, what it did outside

They are run by a process of their own: it is the parent that they attack, beside a victim, which is its other child.
Each program finds these names: OUT (a folder), FILE and SECRET (files in it), PARENT and VICTIM (processes), PLACE (an
address in the victim, where a secret is), PORT, UNIX and ABSTRACT (where something listens), `libc` and `call(number)`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from waiting import patient

HIDDEN = "very" + "hidden"
ARM = platform.machine() == "aarch64"
CATCHABLE = sorted(set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD})
VICTIM = """
import ctypes, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
secret = ctypes.create_string_buffer(sys.stdin.readline().strip().encode())
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""
BEGIN = """
import os, sys, signal, ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *given):
    one = [ctypes.c_long(x) if isinstance(x, int) else x for x in given]
    found = libc.syscall(ctypes.c_long(number), *one)
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found
def stay():
    try:
        os.setsid()
    except OSError:
        pass
    os.close(1); os.close(2); libc.sleep(300)
SHELL = 'setsid sleep 300 >&- 2>&- &'
def number(x86_64, aarch64):
    return aarch64 if os.uname().machine == 'aarch64' else x86_64
"""

CHANGES = r"""
# writes
open(FILE, 'w').write('x')
# appends
open(FILE, 'a').write('x')
# writes in place
open(FILE, 'r+').write('x')
# writes bytes without a buffer
open(FILE, 'wb', buffering=0).write(b'x')
# makes a file
open(OUT + '/new', 'x')
# empties with os.open
os.open(FILE, os.O_WRONLY | os.O_TRUNC)
# empties a file opened for reading
os.open(FILE, os.O_RDONLY | os.O_TRUNC)
# empties by a folder's descriptor
os.open('kept', os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(OUT, os.O_RDONLY))
# empties by the descriptor of a path
os.open('kept', os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(OUT, os.O_PATH))
# makes a file by a folder's descriptor
os.open('new', os.O_WRONLY | os.O_CREAT, dir_fd=os.open(OUT, os.O_PATH))
# makes a file without a name and gives it one
f = os.open(OUT, os.O_TMPFILE | os.O_RDWR)
call(number(265, 37), -100, f'/proc/self/fd/{f}'.encode(), -100, f'{OUT}/new'.encode(), 0x400)
# writes with an opener
open('kept', 'w', opener=lambda name, flags: os.open(name, flags, dir_fd=os.open(OUT, os.O_PATH)))
# goes there and writes
os.chdir(OUT); open('kept', 'w')
# goes there by a descriptor and writes
os.fchdir(os.open(OUT, os.O_PATH)); open('kept', 'w')
# writes upwards
open('../' * 20 + FILE[1:], 'w')
# opens a path again for writing
f = os.open(FILE, os.O_PATH); open(f'/proc/self/fd/{f}', 'w')
# opens a path again through dev
f = os.open(FILE, os.O_PATH); open(f'/dev/fd/{f}', 'w')
# writes through the parent's folder
open(f'/proc/{PARENT}/cwd/kept', 'w')
# writes through the parent's root
open(f'/proc/{PARENT}/root{FILE}', 'w')
# writes through the victim's open file
open(f'/proc/{VICTIM}/fd/{WRITABLE}', 'w')
# writes to descriptors that were inherited
for f in range(3, 64):
    try:
        os.write(f, b'x')
    except OSError:
        pass
# writes with C
f = libc.fopen(FILE.encode(), b'w')
# writes with a system call
call(number(257, 56), -100, FILE.encode(), os.O_WRONLY | os.O_TRUNC, 0)
# writes with openat2
call(437, -100, FILE.encode(), struct.pack('QQQ', os.O_WRONLY | os.O_TRUNC, 0, 0), 24)
# writes with creat
call(85 if os.uname().machine == 'x86_64' else 9999, FILE.encode(), 0o600)
# writes by a file handle
handle, mount = ctypes.create_string_buffer(struct.pack('Ii', 128, 0) + bytes(128)), ctypes.c_int()
call(number(303, 264), -100, FILE.encode(), handle, ctypes.byref(mount), 0)
os.write(call(number(304, 265), os.open(OUT, os.O_RDONLY), handle, os.O_WRONLY), b'x')
# writes to a map of a file
import mmap
m = mmap.mmap(os.open(FILE, os.O_RDWR), 4); m[:4] = b'xxxx'; m.flush()
# empties by name
os.truncate(FILE, 0)
# empties by descriptor
os.ftruncate(os.open(FILE, os.O_RDWR), 0)
# removes
os.remove(FILE)
# removes by a folder's descriptor
os.unlink('kept', dir_fd=os.open(OUT, os.O_PATH))
# removes a folder
os.rmdir(OUT + '/empty')
# removes all
import shutil; shutil.rmtree(OUT, ignore_errors=True)
# renames there
os.rename(FILE, OUT + '/other')
# takes a file away
os.rename(FILE, 'mine')
# puts a file there
open('mine', 'w'); os.rename('mine', OUT + '/new')
# puts a file over one
open('mine', 'w'); os.replace('mine', FILE)
# exchanges two files
open('mine', 'w'); call(number(316, 276), -100, b'mine', -100, FILE.encode(), 2)
# moves with shutil
import shutil; open('mine', 'w'); shutil.move('mine', OUT + '/new')
# makes a hard link and writes
os.link(FILE, 'mine'); open('mine', 'w')
# makes a hard link there
open('mine', 'w'); os.link('mine', OUT + '/new')
# makes a hard link of a descriptor
call(number(265, 37), os.open(FILE, os.O_PATH), b'', -100, b'mine', 0x1000); open('mine', 'w')
# makes a link there
os.symlink('/', OUT + '/new')
# writes through a link
os.symlink(FILE, 'mine'); open('mine', 'w')
# writes through a link to the folder
os.symlink(OUT, 'mine'); open('mine/new', 'w')
# writes through a link to a process
os.symlink(f'/proc/{PARENT}/cwd', 'mine'); open('mine/new', 'w')
# makes a folder
os.mkdir(OUT + '/new')
# makes folders
os.makedirs(OUT + '/new/and/more')
# makes a folder by descriptor
os.mkdir('new', dir_fd=os.open(OUT, os.O_PATH))
# makes a pipe
os.mkfifo(OUT + '/new')
# makes a pipe by descriptor
os.mkfifo('new', dir_fd=os.open(OUT, os.O_PATH))
# makes a node
os.mknod(OUT + '/new')
# makes a socket's file
import socket; socket.socket(socket.AF_UNIX).bind(OUT + '/new')
# changes a mode
os.chmod(FILE, 0o777)
# changes a mode by descriptor
os.fchmod(os.open(FILE, os.O_RDONLY), 0o777)
# changes a mode by a folder's descriptor
os.chmod('kept', 0o777, dir_fd=os.open(OUT, os.O_PATH))
# changes a mode with the newest call
call(452, -100, FILE.encode(), 0o777, 0)
# changes an owner
os.chown(FILE, 1234, 1234)
# changes an owner of a link
os.lchown(OUT + '/empty', 1234, 1234)
# changes times
os.utime(FILE, (1, 1))
# changes times by a folder's descriptor
os.utime('kept', (1, 1), dir_fd=os.open(OUT, os.O_PATH))
# changes attributes
os.setxattr(FILE, 'user.x', b'x')
# cuts a hole
call(number(285, 47), os.open(FILE, os.O_RDWR), 3, 0, 4)
# copies by range
call(number(326, 285), os.open(FILE, os.O_RDONLY), 0, os.open(OUT + '/other', os.O_WRONLY | os.O_CREAT), 0, 4, 0)
# copies with sendfile
open('mine', 'w').write('mine'); os.sendfile(os.open(FILE, os.O_WRONLY), os.open('mine', os.O_RDONLY), 0, 4)
# copies with shutil
import shutil; open('mine', 'w'); shutil.copy('mine', FILE)
# has readline write its history
import readline; readline.write_history_file(FILE)
# has readline append to a history
import readline; readline.add_history('x'); readline.append_history_file(1, FILE)
# has sqlite make a file
import sqlite3; sqlite3.connect(OUT + '/new').execute('create table a(b)')
# has sqlite attach a file
import sqlite3; sqlite3.connect(':memory:').execute(f"attach '{OUT}/new' as n").execute('create table n.a(b)')
# has sqlite vacuum into a file
import sqlite3; sqlite3.connect(':memory:').execute(f"vacuum into '{OUT}/new'")
# has sqlite back up
import sqlite3; a = sqlite3.connect(':memory:'); a.execute('create table a(b)'); a.backup(sqlite3.connect(OUT + '/new'))
# has ssl log keys
import ssl; ssl.create_default_context().keylog_filename = OUT + '/new'
# has dbm make a file
import dbm.dumb; dbm.dumb.open(OUT + '/new', 'c')['a'] = b'b'
# has shelve make a file
import shelve; shelve.open(OUT + '/new')['a'] = 1
# has logging write
import logging; logging.FileHandler(FILE).emit(logging.makeLogRecord({'msg': 'x'}))
# has zipfile write
import zipfile; zipfile.ZipFile(OUT + '/new', 'w').writestr('a', 'b')
# has tarfile unpack
import tarfile, io
b = io.BytesIO(); t = tarfile.open(fileobj=b, mode='w'); i = tarfile.TarInfo(OUT + '/new'); t.addfile(i, io.BytesIO())
t.close(); b.seek(0); tarfile.open(fileobj=b).extractall(filter='fully_trusted')
# has tempfile make a file
import tempfile; tempfile.NamedTemporaryFile(dir=OUT, delete=False)
# has a profile written
import cProfile; cProfile.run('1', FILE)
# has py_compile write
import py_compile; open('a.py', 'w').write('1'); py_compile.compile('a.py', OUT + '/new')
# has faulthandler write
import faulthandler; faulthandler.dump_traceback(open(FILE, 'w'))
# mounts over the folder
assert not libc.mount(b'none', OUT.encode(), b'tmpfs', 0, b'')
# mounts one folder over another
assert not libc.mount(f'{OUT}/empty'.encode(), OUT.encode(), None, 4096, None)
# mounts in a user namespace of its own
assert not libc.unshare(0x10020000); assert not libc.mount(OUT.encode(), os.getcwd().encode(), None, 4096, None)
open(os.getcwd() + '/kept', 'w')
# changes its root
os.chroot(OUT); open('/kept', 'w')
# writes in a namespace of another process
call(number(308, 268), os.open(f'/proc/{PARENT}/ns/mnt', os.O_RDONLY), 0); open(FILE, 'w')
# lifts the rules with rules of its own
f = call(444, struct.pack('Q', 2), 8, 0)
call(445, f, 1, struct.pack('=Qi', 2, os.open('/', os.O_PATH)), 0); call(446, f, 0); open(FILE, 'w')
# writes from a thread
import threading; t = threading.Thread(target=open, args=(FILE, 'w')); t.start(); t.join()
# changes the parent's score for the end of memory
open(f'/proc/{PARENT}/oom_score_adj', 'w').write('777')
# changes the victim's score for the end of memory
open(f'/proc/{VICTIM}/oom_score_adj', 'w').write('777')
# changes the parent's limits through proc
open(f'/proc/{PARENT}/timerslack_ns', 'w').write('12345')
# takes the victim's memory through proc
f = os.open(f'/proc/{VICTIM}/mem', os.O_RDWR); os.pwrite(f, b'x', PLACE)
# kills the parent
os.kill(PARENT, 9)
# kills the victim
os.kill(VICTIM, 9)
# stops the victim
os.kill(VICTIM, signal.SIGSTOP)
# signals the parent's group
os.killpg(os.getpgid(PARENT), signal.SIGURG)
# signals the victim's group by a negative number
os.kill(-os.getpgid(VICTIM), signal.SIGURG)
# signals all processes
os.kill(-1, signal.SIGURG)
# kills the parent by pidfd
signal.pidfd_send_signal(os.pidfd_open(PARENT), 9)
# kills the victim by pidfd
signal.pidfd_send_signal(os.pidfd_open(VICTIM), 9)
# kills the victim by a pidfd from proc
signal.pidfd_send_signal(os.open(f'/proc/{VICTIM}', os.O_RDONLY | os.O_DIRECTORY), 9)
# kills the victim's thread
signal.pthread_kill; call(number(234, 131), VICTIM, VICTIM, 9)
# kills the parent's thread
call(number(200, 130), PARENT, 9)
# queues a signal to the victim
call(number(129, 138), VICTIM, 10, struct.pack('iiiiii', 10, 0, -1, 0, os.getpid(), os.getuid()) + bytes(104))
# queues a signal to the victim's thread
call(number(297, 240), VICTIM, VICTIM, 10, struct.pack('iiii', 10, 0, -1, 0) + bytes(112))
# queues a signal with C
libc.sigqueue(VICTIM, 10, ctypes.c_long(1))
# has a pipe signal the victim
import fcntl
r, w = os.pipe(); fcntl.fcntl(r, 8, VICTIM); fcntl.fcntl(r, 10, 10)
fcntl.fcntl(r, 4, fcntl.fcntl(r, 3) | 0o20000); os.write(w, b'x')
# has a pipe signal the parent
import fcntl
r, w = os.pipe(); fcntl.fcntl(r, 8, PARENT)
fcntl.fcntl(r, 4, fcntl.fcntl(r, 3) | 0o20000); os.write(w, b'x')
# renices the parent
os.setpriority(os.PRIO_PROCESS, PARENT, 7)
# renices the victim
os.setpriority(os.PRIO_PROCESS, VICTIM, 7)
# renices the parent's group
os.setpriority(os.PRIO_PGRP, os.getpgid(PARENT), 7)
# pins the parent
os.sched_setaffinity(PARENT, {next(iter(os.sched_getaffinity(0)))})
# pins the victim
os.sched_setaffinity(VICTIM, {next(iter(os.sched_getaffinity(0)))})
# schedules the parent last
os.sched_setscheduler(PARENT, os.SCHED_IDLE, os.sched_param(0))
# schedules the victim last
os.sched_setscheduler(VICTIM, os.SCHED_BATCH, os.sched_param(0))
# schedules the victim with sched_setattr
call(number(314, 274), VICTIM, struct.pack('IIQiIQQQ', 48, 5, 0, 0, 0, 0, 0, 0), 0)
# gives the victim's disk less
call(number(251, 30), 1, VICTIM, 3 << 13)
# limits the parent
import resource; resource.prlimit(PARENT, resource.RLIMIT_MSGQUEUE, (1000, 1000))
# limits the victim
import resource; resource.prlimit(VICTIM, resource.RLIMIT_MSGQUEUE, (1000, 1000))
# kills the victim by its limit
import resource; resource.prlimit(VICTIM, resource.RLIMIT_CPU, (1, 1))
# traces the victim
libc.ptrace.argtypes = [ctypes.c_long] * 4; libc.ptrace(16, VICTIM, 0, 0); import time; time.sleep(0.1)
libc.ptrace(8, VICTIM, 0, 0)
# seizes the victim
libc.ptrace.argtypes = [ctypes.c_long] * 4; libc.ptrace(0x4206, VICTIM, 0, 0); libc.ptrace(0x4207, VICTIM, 0, 0)
import time; time.sleep(0.1); libc.ptrace(5, VICTIM, PLACE, 0)
# writes the victim's memory
b = ctypes.create_string_buffer(b'x' * 4)
call(number(311, 271), VICTIM, struct.pack('QQ', ctypes.addressof(b), 4), 1, struct.pack('QQ', PLACE, 4), 1, 0)
# starts a daemon with fork
if not os.fork():
    stay()
# starts a daemon with forkpty
if not os.forkpty()[0]:
    stay()
# starts a daemon with C
if not libc.fork():
    stay()
# starts a daemon with vfork
call(58 if os.uname().machine == 'x86_64' else 220, 0) or stay()
# starts a daemon with clone
call(number(56, 220), 17, 0, 0, 0, 0) or stay()
# starts a daemon beside itself with clone
call(number(56, 220), 17 | 0x8000, 0, 0, 0, 0) or stay()
# starts a daemon with clone3
call(435, struct.pack('QQQQQQQQ', 0, 0, 0, 0, 17, 0, 0, 0), 64) or stay()
# starts a program
import subprocess; subprocess.Popen(['sleep', '300'], start_new_session=True, stdout=-3, stderr=-3)
# starts a program with a spawn
os.posix_spawn('/bin/sh', ['sh', '-c', SHELL], {})
# starts a program with a shell
os.system(SHELL)
# starts a program with popen
os.popen(SHELL)
# becomes a program that leaves its group
os.execv('/bin/sh', ['sh', '-c', SHELL])
# becomes a program with another call
call(number(322, 281), -100, b'/bin/sh', (ctypes.c_char_p * 4)(b'sh', b'-c', SHELL.encode(), None), None, 0)
# starts processes of Python
import multiprocessing; multiprocessing.Process(target=print, args=(1,)).start(); print('GOT ' 'OUT')
# connects
import socket; socket.create_connection(('127.0.0.1', PORT)).send(b'x')
# connects with version 6
import socket; socket.create_connection(('::1', PORT)).send(b'x')
# connects with C
f = call(number(41, 198), 2, 1, 0)
call(number(42, 203), f, struct.pack('=H', 2) + struct.pack('>H', PORT) + bytes([127, 0, 0, 1]) + bytes(8), 16)
# connects with a low module
import _socket; s = _socket.socket(); s.connect(('127.0.0.1', PORT))
# connects with urllib
import urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{PORT}', timeout=0.2)
# connects with asyncio
import asyncio; asyncio.run(asyncio.wait_for(asyncio.open_connection('127.0.0.1', PORT), 1))
# sends a packet
import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))
# connects to a file
import socket; socket.socket(socket.AF_UNIX).connect(UNIX)
# sends a packet to a file
import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', UNIX + '.packets')
# connects to a name
import socket; socket.socket(socket.AF_UNIX).connect(ABSTRACT)
# sends a packet to a name
import socket; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', ABSTRACT + b'.packets')
# sends a packet from a pair
import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', UNIX + '.packets')
# makes shared memory
from multiprocessing import shared_memory; shared_memory.SharedMemory(NAME + 'new', True, 4096); os._exit(0)
# writes shared memory
from multiprocessing import shared_memory; shared_memory.SharedMemory(NAME).buf[0] = 1; os._exit(0)
# writes shared memory as a file
open('/dev/shm/' + NAME, 'r+b').write(b'x')
# writes old shared memory
libc.shmat.restype = ctypes.c_void_p; ctypes.memset(libc.shmat(SHARED, None, 0), 1, 4)
"""
"""What each would change outside is noticed there, however its program ends."""

READS = r"""
# reads
print(open(SECRET).read())
# reads with a system call
print(os.read(call(number(257, 56), -100, SECRET.encode(), 0, 0), 99))
# reads by a folder's descriptor
print(os.read(os.open('secret', os.O_RDONLY, dir_fd=os.open(OUT, os.O_PATH)), 99))
# reads upwards
print(open('../' * 20 + SECRET[1:]).read())
# reads through a link
os.symlink(SECRET, 'mine'); print(open('mine').read())
# reads through a hard link
os.link(SECRET, 'mine'); print(open('mine').read())
# reads a map
import mmap; print(mmap.mmap(os.open(SECRET, os.O_RDONLY), 0, prot=1)[:99])
# reads a copy
import shutil; shutil.copyfile(SECRET, 'mine'); print(open('mine').read())
# reads a line
import linecache; print(linecache.getline(SECRET, 1))
# reads with sqlite
import sqlite3; print(sqlite3.connect(f'file:{OUT}/base?mode=ro', uri=True).execute('select * from a').fetchall())
# sends what it reads
os.sendfile(1, os.open(SECRET, os.O_RDONLY), 0, 99)
# reads an attribute
print(os.getxattr(FILE, 'user.secret'))
# lists a folder
print(os.listdir(OUT))
# lists a folder by descriptor
print(os.listdir(os.open(OUT, os.O_RDONLY)))
# matches names in a folder
import glob; print(glob.glob(OUT + '/*'))
# reads the parent's variables
print(open(f'/proc/{PARENT}/environ').read())
# reads its own variables
print(os.environ, open('/proc/self/environ').read())
# reads its variables with C
print(ctypes.cast(ctypes.c_char_p.in_dll(libc, 'environ'), ctypes.c_void_p).value and libc.getenv(b'SECRET_OF_TESTS'))
libc.getenv.restype = ctypes.c_char_p; print(libc.getenv(b'SECRET_OF_TESTS'))
# reads the victim's memory
b = ctypes.create_string_buffer(99)
call(number(310, 270), VICTIM, struct.pack('QQ', ctypes.addressof(b), 99), 1, struct.pack('QQ', PLACE, 99), 1, 0)
print(b.raw)
# reads the victim's memory through proc
print(os.pread(os.open(f'/proc/{VICTIM}/mem', os.O_RDONLY), 99, PLACE))
# takes an open file of the parent
print(os.pread(call(438, os.pidfd_open(PARENT), OPEN, 0), 99, 0))
# reads an open file of the parent through proc
print(open(f'/proc/{PARENT}/fd/{OPEN}').read())
# reads shared memory
print(open('/dev/shm/' + NAME, 'rb').read(99))
# reads old shared memory
libc.shmat.restype = ctypes.c_void_p; print(ctypes.string_at(libc.shmat(SHARED, None, 0o10000), 99))
# reads with another program
import subprocess; print(subprocess.run(['cat', SECRET], capture_output=True).stdout)
# reads what the parent is called with
print('HIDDEN' if b'sandbox_escapes' in open(f'/proc/{PARENT}/cmdline', 'rb').read() else '')
# reads through an error
try: exec(open(SECRET).read())
except SyntaxError as error: print(error.text)
except NameError as error: print(error)
"""
"""What each would read holds the secret."""

REFUSED = r"""
# makes a device
os.mknod('zero', 0o20666, os.makedev(1, 5)); open('zero', 'rb').read(1)
# opens a socket of the kernel
import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
# opens a raw socket
import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)
# opens a socket for packets
import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
# opens a socket to a host
import socket; socket.socket(socket.AF_VSOCK)
# listens
import socket; socket.create_server(('127.0.0.1', 0))
# makes a user namespace
assert not libc.unshare(0x10000000), os.strerror(ctypes.get_errno())
# makes a network namespace
assert not libc.unshare(0x40000000), os.strerror(ctypes.get_errno())
# watches with perf
call(number(298, 241), struct.pack('IIQ', 1, 128, 9) + bytes(112), 0, -1, -1, 0)
# loads a program into the kernel
call(number(321, 280), 0, struct.pack('IIII', 2, 4, 8, 1) + bytes(112), 72)
# makes a ring
call(425, 4, ctypes.create_string_buffer(120))
# keeps a key
call(number(248, 217), b'user', b'x', b'x', 1, -3)
# asks for keys
call(number(250, 219), 0, -4, 1)
# handles faults
call(number(323, 282), 1)
# makes memory without a name
os.memfd_create('x')
# makes a queue
call(number(240, 180), b'headway', os.O_CREAT | os.O_RDWR, 0o600, None)
# makes semaphores
call(number(64, 190), 0, 1, 0o1600)
# makes old shared memory
call(number(29, 194), 0, 4096, 0o1600)
# makes old messages
call(number(68, 186), 0, 0o1600)
# watches a folder
f = call(number(294, 26), 0); call(number(254, 27), f, OUT.encode(), 2)
# opens a pidfd
os.pidfd_open(VICTIM)
# looks whether a process can be killed
os.kill(VICTIM, 0)
# asks to live longer than its parent
assert not libc.prctl(1, 0, 0, 0, 0)
# changes its personality
call(number(135, 92), 0x40000)
# locks its memory
call(number(149, 228), 0, 0)
# takes the memory of a page away
m = ctypes.create_string_buffer(8192); call(number(28, 233), (ctypes.addressof(m) + 4095) & ~4095, 4096, 101)
# raises its limit of files
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 10000))
# raises its limit of computing
import resource; resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
# raises its limit of memory
import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
# lowers its own priority
os.nice(1)
# pins itself
os.sched_setaffinity(0, os.sched_getaffinity(0))
# names the machine
call(number(170, 161), os.uname().nodename.encode(), len(os.uname().nodename))
# sets the clock
import time; time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
# writes all files of the machine to disk
call(number(162, 81))
# reads the kernel's messages
call(number(103, 116), 10, 0, 0)
# asks about another process
call(number(312, 272), os.getpid(), PARENT, 0, 0, 0)
# moves pages of another process
call(number(256, 238), VICTIM, 8, struct.pack('Q', 1), struct.pack('Q', 1))
# becomes another user
os.setuid(65534)
# holds a lease on a file
import fcntl; open('mine', 'w').close(); fcntl.fcntl(os.open('mine', os.O_RDONLY), 1024, 0)
# becomes another group
os.setgroups([])
# takes a terminal
import pty; pty.openpty()
# makes a timer for another thread
call(number(222, 107), 0, struct.pack('QiiQQ', 0, 10, 0, 0, 0) + bytes(64), ctypes.byref(ctypes.c_int()))
# makes its output's pipe larger
import fcntl; fcntl.fcntl(1, 1031, 1 << 20)
# reads limits of another process
import resource; resource.prlimit(VICTIM, resource.RLIMIT_CPU)
# makes a folder that cannot be removed
os.mkdir('mine', 0)
# takes all rights from what it makes
os.umask(0o777)
"""
"""Each of these ends with an error."""

BOMBS = r"""
# forks without end
while True: os.fork()
# starts threads without end
import threading, time
threading.stack_size(32768)
while True:
    try:
        threading.Thread(target=time.sleep, args=(99,), daemon=True).start()
    except (RuntimeError, MemoryError):
        time.sleep(0.01)
# takes memory without end
x = [b'x' * 1000000]
while True: x += x
# maps memory without end
import mmap
x = []
while True: x.append(mmap.mmap(-1, 1 << 24))
# writes files without end
n = 0
while True:
    open(str(n), 'wb').write(bytes(1 << 20)); n += 1
# closes what it prints to and writes files without end
os.close(1); os.close(2)
n = 0
while True:
    open(str(n), 'wb').write(bytes(1 << 20)); n += 1
# makes files without end
n = 0
while True:
    open(str(n), 'w').close(); n += 1
# makes folders in folders without end
while True:
    os.mkdir('a'); os.chdir('a')
# hides files deep below
for n in range(900):
    os.mkdir('a' * 200); os.chdir('a' * 200)
while True:
    n += 1; open(str(n), 'wb').write(bytes(1 << 20))
# leaves links everywhere
os.mkdir('a'); os.symlink(OUT, 'a/b'); os.symlink('/', 'c'); os.symlink('a', 'd'); os.symlink('e', 'e')
# prints without end
while True: print('x' * 999)
# prints errors without end
while True: os.write(2, b'x' * 999)
# hears no signal and computes
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
# ends in the depths of C
ctypes.string_at(0)
# calls itself without end
sys.setrecursionlimit(10**9)
def f(): f()
f()
# runs code of another machine language
import mmap
m = mmap.mmap(-1, 4096, prot=7); m.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3' if os.uname().machine == 'x86_64' else b'')
print('ID', ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))())
# kills with the other kind of numbers
call(0x40000000 + 62, VICTIM, 9)
# opens without end
x = []
while True: x.append(os.open('.', os.O_RDONLY))
"""
WAITING = r"""
# closes what it prints to and stays
os.close(1); os.close(2); import time; time.sleep(300)
# stops itself
signal.raise_signal(signal.SIGSTOP)
# waits for what never comes
import threading; threading.Event().wait()
"""
"""Bombs are stopped, or end by themselves, and leave nothing. Those who wait are stopped when their time is over."""


def programs(table: str) -> dict[str, str]:
    parts = re.split(r"(?m)^# (.+)\n", table.strip() + "\n")
    return dict(zip(parts[1::2], parts[2::2], strict=True))


ATTACKS = {name: text for table in (CHANGES, READS, REFUSED) for name, text in programs(table).items()}
ALL = {**ATTACKS, **programs(BOMBS), **programs(WAITING)}


class World:
    """What programs find outside, and what has become of it."""

    def __init__(self) -> None:
        self.out = Path(tempfile.mkdtemp(prefix="outside-"))
        self.name = f"headway-test-{os.getpid()}"
        (self.out / "empty").mkdir()
        (self.out / "kept").write_text("kept")
        (self.out / "secret").write_text(HIDDEN)
        import sqlite3

        with sqlite3.connect(self.out / "base") as base:
            base.execute("create table a(b)")
            base.execute("insert into a values (?)", [HIDDEN])
        base.close()
        self.temporary = Path(tempfile.mkdtemp(prefix="temporary-"))
        tempfile.tempdir = str(self.temporary)
        os.chdir(self.out)
        try:
            os.setxattr("kept", "user.secret", HIDDEN.encode())
        except OSError:
            pass  # not on this file system
        self.memory = Path("/dev/shm", self.name)
        self.memory.write_text(HIDDEN)
        self.libc = ctypes.CDLL(None)
        self.libc.shmat.restype = ctypes.c_void_p
        self.shared = self.libc.shmget(0, 4096, 0o1600)
        self.libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
        self.attached = self.libc.shmat(self.shared, None, 0)
        ctypes.memmove(self.attached, HIDDEN.encode(), len(HIDDEN))
        self.open_file = os.open("secret", os.O_RDONLY)
        self.writable = os.open("kept", os.O_RDWR)
        os.set_inheritable(self.writable, True)
        self.heard: list[int] = []
        for one in CATCHABLE:
            try:
                signal.signal(one, lambda number, _: self.heard.append(number))
            except (OSError, ValueError):
                pass
        if os.getpid() != os.getsid(0):
            os.setpgid(0, 0)
        self.libc.prctl(36, 1, 0, 0, 0)  # children of children come to this process
        self.limits = {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
        self.listeners = self._listeners()
        self._start_victim()
        self.before = self.state()

    def _listeners(self) -> dict[str, socket.socket]:
        tcp = socket.create_server(("127.0.0.1", 0))
        self.port = tcp.getsockname()[1]
        found = {"tcp": tcp}
        for kind, family, type_, where in (
            ("tcp6", socket.AF_INET6, socket.SOCK_STREAM, ("::1", self.port)),
            ("udp", socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", self.port)),
            ("unix", socket.AF_UNIX, socket.SOCK_STREAM, "unix"),
            ("packets", socket.AF_UNIX, socket.SOCK_DGRAM, "unix.packets"),
            ("name", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.name}"),
            ("named packets", socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.name}.packets"),
        ):
            try:
                found[kind] = socket.socket(family, type_)
                found[kind].bind(where)
            except OSError:
                assert kind == "tcp6"
                del found[kind]
                continue
            if type_ == socket.SOCK_STREAM:
                found[kind].listen()
        return found

    def _start_victim(self) -> None:
        self.victim = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", VICTIM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.writable],
        )
        assert self.victim.stdin is not None and self.victim.stdout is not None
        self.victim.stdin.write(HIDDEN + "\n")
        self.victim.stdin.flush()
        self.place = int(self.victim.stdout.readline())

    def preamble(self) -> str:
        given = {
            "OUT": str(self.out),
            "FILE": str(self.out / "kept"),
            "SECRET": str(self.out / "secret"),
            "UNIX": str(self.out / "unix"),
            "ABSTRACT": b"\0" + self.name.encode(),
            "NAME": self.name,
            "PARENT": os.getpid(),
            "VICTIM": self.victim.pid,
            "PLACE": self.place,
            "PORT": self.port,
            "OPEN": self.open_file,
            "WRITABLE": self.writable,
            "SHARED": self.shared,
        }
        return BEGIN + "".join(f"{name} = {value!r}\n" for name, value in given.items())

    def state(self) -> dict[str, Any]:
        """All that a program could change."""
        found: dict[str, Any] = {}
        for path in [self.out, *sorted(self.out.rglob("*"))]:
            seen = path.lstat()
            what = (seen.st_mode, seen.st_uid, seen.st_size, seen.st_mtime_ns, seen.st_nlink, seen.st_dev)
            content = path.read_bytes() if path.is_file() else b""
            try:
                attributes = sorted(os.listxattr(path, follow_symlinks=False))
            except OSError:
                attributes = []
            found[f"file {path.relative_to(self.out)}"] = [*what, content, attributes]
        found["temporary"] = os.listdir(self.temporary)
        found["memory"] = sorted(one for one in os.listdir("/dev/shm") if one.startswith(self.name))
        found["shared memory"] = self.memory.read_bytes(), ctypes.string_at(self.attached, 32)
        found["old shared memory"] = self.libc.shmctl(self.shared, 2, ctypes.create_string_buffer(512))
        found["heard"] = list(self.heard)
        ready, _, _ = select.select(list(self.listeners.values()), [], [], 0)
        found["reached"] = sorted(name for name, one in self.listeners.items() if one in ready)
        found["lease"] = [line for line in Path("/proc/locks").read_text().splitlines() if "LEASE" in line]
        for name, pid in (("parent", os.getpid()), ("victim", self.victim.pid)):
            if name == "victim" and self.victim.poll() is not None:
                found["victim"] = "dead"
                continue
            status = Path(f"/proc/{pid}/status").read_text()
            wanted = ["TracerPid", "Name", *(["SigPnd", "ShdPnd"] if name == "victim" else [])]
            found[name] = {
                "status": [line for line in status.splitlines() if line.split(":")[0] in wanted],
                "stopped": name == "victim" and "State:\tS" not in status and _is_stopped(pid),
                "priority": os.getpriority(os.PRIO_PROCESS, pid),
                "cores": sorted(os.sched_getaffinity(pid)),
                "scheduler": os.sched_getscheduler(pid),
                "disk": self.libc.syscall(31 if ARM else 252, 1, pid),
                "limits": [resource.prlimit(pid, one) for one in sorted(self.limits)],
                "score": Path(f"/proc/{pid}/oom_score_adj").read_text(),
                "slack": Path(f"/proc/{pid}/timerslack_ns").read_text() if name == "parent" else "",
                "group": [os.getpgid(pid), os.getsid(pid)],
                "root": os.readlink(f"/proc/{pid}/root"),
            }
        if self.victim.poll() is None:
            with open(f"/proc/{self.victim.pid}/mem", "rb", buffering=0) as memory:
                memory.seek(self.place)
                found["victim's memory"] = memory.read(len(HIDDEN))
        found["children"] = len(self.children())
        return found

    def children(self) -> list[int]:
        """All but the victim; with those whose parents ended."""
        found = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return [int(one) for one in found if int(one) != self.victim.pid]

    def harm(self, text: str) -> list[str]:
        """What is otherwise than at the beginning. A dead victim is replaced, so that later programs have one."""
        now = self.state()
        found = [name for name in {**now, **self.before} if now.get(name) != self.before.get(name)]
        if any(word in text for word in (HIDDEN, "HIDDEN", "GOT OUT", "unix.packets")):
            found.append("read")
        return found

    def close(self) -> None:
        for child in self.children():
            os.kill(child, signal.SIGKILL)
        self.victim.kill()
        self.victim.wait()
        for one in self.listeners.values():
            one.close()
        self.libc.shmctl(self.shared, 0, None)
        for left in Path("/dev/shm").glob(f"{self.name}*"):
            left.unlink()
        os.chdir("/")
        while not self.libc.umount2(os.fsencode(self.out), 2):  # what a program has put over it is not ours to remove
            pass
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.temporary, ignore_errors=True)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"


def become_nobody() -> None:
    """Leaves root's rights, if this process has them: in a user namespace where it is an ordinary user."""
    if os.getuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000):
        raise SystemExit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text("65534 0 1")
    Path("/proc/self/gid_map").write_text("65534 0 1")
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    assert not libc.capset(header, (ctypes.c_uint32 * 6)())
    assert libc.prctl(4, 1, 0, 0, 0) == 0  # dumpable again, so that /proc of this process can be read


def main(sandbox: str, user: str, *names: str) -> None:
    from headway.agents.included_tools_python_sandbox import SandboxLimits, run_python

    if "SECRET_OF_TESTS" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "SECRET_OF_TESTS": HIDDEN})
    if user == "nobody":
        become_nobody()
    world = World()
    try:
        for name in names or ALL:
            wall_s = 0.7 if name in programs(WAITING) else patient(10.0)
            limits = SandboxLimits(wall_s=wall_s, cpu_s=1, memory_mb=512)
            began = time.monotonic()
            ended = run_python(world.preamble() + ALL[name], limits, sandbox)  # type: ignore[arg-type]
            took = time.monotonic() - began
            told = {"name": name, "end": ended.end, "text": ended.text[:500], "harm": world.harm(ended.text)}
            print(json.dumps({**told, "took": took, "wall_s": limits.wall_s}), flush=True)
    finally:
        world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
