"""Walls of the Linux kernel around this process: Landlock for files, seccomp for everything else it may ask for.

    shut_in(folder) --> capabilities    none but reading, so that root is a user like others
                    --> Landlock        FOLDER can be changed; Python and the system's libraries can be read; no more
                    --> seccomp         only the system calls listed here, some with some arguments only

Nothing takes a wall down again: no new privileges are given, and other programs cannot be started. What is not listed
here is refused, so system calls of later kernels are, too. Landlock does not see changes of modes and times, and a
filter does not see paths: such calls are answered with success, and do nothing.

Standard library only: sandboxed_program.py imports it without the package. Raises OSError where a wall is missing.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls with the same number everywhere
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE = 38, 22, 2  # prctl
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of the tables below, and what the kernel calls the machine in a filter."""

EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1, 2, 4, 8
MAKE_DEVICES_AND_SOCKETS = 1 << 6 | 1 << 9 | 1 << 11
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""The rights to files that Landlock knows, from one version of it to the next."""
SCOPED_SINCE, SCOPES = 6, 3  # no abstract sockets of others, no signals to others

READABLE = (  # besides the folders of Python itself
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/etc/ld.so.cache"),
    *("/usr/share/zoneinfo", "/etc/localtime", "/etc/mime.types", "/dev/urandom"),
)

ALLOWED = """
    read 0 63  write 1 64  readv 19 65  writev 20 66  pread64 17 67  pwrite64 18 68  lseek 8 62  close 3 57
    close_range 436 436  dup 32 23  dup2 33 -  dup3 292 24  pipe 22 -  pipe2 293 59  sendfile 40 71
    copy_file_range 326 285  access 21 -  faccessat 269 48  faccessat2 439 439  stat 4 -  lstat 6 -  fstat 5 80
    newfstatat 262 79  statx 332 291  statfs 137 43  fstatfs 138 44  readlink 89 -  readlinkat 267 78  getcwd 79 17
    chdir 80 49  fchdir 81 50  getdents 78 -  getdents64 217 61  unlink 87 -  unlinkat 263 35  rmdir 84 -
    rename 82 -  renameat 264 38  renameat2 316 276  link 86 -  linkat 265 37  symlink 88 -  symlinkat 266 36
    creat 85 -  ftruncate 77 46  fallocate 285 47  fsync 74 82  fdatasync 75 83  fadvise64 221 223  flock 73 32
    brk 12 214  mmap 9 222  munmap 11 215  mprotect 10 226  mremap 25 216  madvise 28 233  msync 26 227
    futex 202 98  set_robust_list 273 99  set_tid_address 218 96  rseq 334 293  sched_yield 24 124  getcpu 309 168
    gettid 186 178  exit 60 93  exit_group 231 94  rt_sigaction 13 134  rt_sigprocmask 14 135  rt_sigreturn 15 139
    rt_sigpending 127 136  rt_sigtimedwait 128 137  rt_sigsuspend 130 133  sigaltstack 131 132  pause 34 -
    alarm 37 -  setitimer 38 103  getitimer 36 102  restart_syscall 219 128  time 201 -  gettimeofday 96 169
    clock_gettime 228 113  clock_getres 229 114  clock_nanosleep 230 115  nanosleep 35 101  times 100 153
    poll 7 -  ppoll 271 73  select 23 -  pselect6 270 72  epoll_create 213 -  epoll_create1 291 20
    epoll_ctl 233 21  epoll_wait 232 -  epoll_pwait 281 22  getpid 39 172  getppid 110 173  getpgrp 111 -
    getpgid 121 155  getsid 124 156  getuid 102 174  geteuid 107 175  getgid 104 176  getegid 108 177
    getresuid 118 148  getresgid 120 150  getgroups 115 158  uname 63 160  sysinfo 99 179  getrusage 98 165
    getrlimit 97 163  sched_getaffinity 204 123  getrandom 318 278
"""
"""Names of system calls with their numbers on x86_64 and aarch64."""
NO_ATTRIBUTES = "listxattr 194 11  llistxattr 195 12  flistxattr 196 13"
"""Are answered as by a file system without extended attributes."""
FIRST_NEW = 424
"""Numbers from here on came with Linux 5.1 or later. C libraries do without them if there seems to be no such call."""
ANY = 0xFFFFFFFF
OWN_THREAD = (0x3D0F00, 0x7D0F00)
"""With which flags `clone` is called for a thread, in glibc and musl."""
OF_FILES = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)
"""What `fcntl` may do: copies, flags, locks; not who gets a signal."""
OF_TERMINALS_AND_COPIES = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451, 0x802C542A, 0x40049409)
OWNER_BITS = 0o700
OPEN_MODES = (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC)

Instruction = tuple[int, int, int, int]
Condition = tuple[int, int, tuple[int, ...]]  # the word of the arguments, its bits that count, what they may be
LOAD, AND, IS, AT_LEAST, ANSWER = 0x20, 0x54, 0x15, 0x35, 0x06
ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000


def shut_in(folder: str, at_most: int = 99) -> None:
    """Leaves this process `folder`, and what it needs to compute, with Landlock as its version `at_most` had it."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES or sys.maxsize < 2**32:
        raise OSError("it needs Linux on x86_64 or aarch64")
    libc = ctypes.CDLL(None, use_errno=True)
    version = min(libc.syscall(CREATE_RULESET, None, 0, 1), at_most)
    if version < 1:
        raise OSError("this kernel has no Landlock, or it is off: it needs Linux 5.13, and in Docker 23")
    _must(libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")
    _drop_capabilities(libc)
    _landlock(libc, folder, version)
    _seccomp(libc, version)


def _must(result: int, what: str) -> int:
    if result < 0:
        raise OSError(f"the kernel refuses {what}: {os.strerror(ctypes.get_errno())}")
    return result


def _drop_capabilities(libc: ctypes.CDLL) -> None:
    header, held = struct.pack("Ii", 0x20080522, 0), (ctypes.c_uint32 * 6)()
    _must(libc.capget(header, held), "capget")
    reading = held[1] & 1 << 2  # Python may be in a folder of another user
    _must(libc.capset(header, (ctypes.c_uint32 * 6)(reading, reading)), "capset")


def _landlock(libc: ctypes.CDLL, folder: str, version: int) -> None:
    known = RIGHTS[max(since for since in RIGHTS if since <= version)]
    rules = struct.pack("QQQ", known, 0, SCOPES) if version >= SCOPED_SINCE else struct.pack("Q", known)
    ruleset = _must(libc.syscall(CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0), "Landlock")
    reading = EXECUTE | READ_FILE | READ_FOLDER
    python = {*sys.path, os.path.join(sys.base_prefix, "lib"), os.path.join(sys.base_exec_prefix, "lib")}
    for path, rights in (
        (folder, known & ~EXECUTE & ~MAKE_DEVICES_AND_SOCKETS),
        ("/dev/null", READ_FILE | WRITE_FILE),
        *((path, reading) for path in (*python, *READABLE)),
    ):
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this machine
        if not os.path.isdir(path):
            rights &= EXECUTE | WRITE_FILE | READ_FILE
        rule = struct.pack("=Qi", rights, place)
        _must(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"Landlock for {path}")
        os.close(place)
    _must(libc.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def _seccomp(libc: ctypes.CDLL, version: int) -> None:
    code = b"".join(struct.pack("=HBBI", *one) for one in system_calls(os.uname().machine, os.getpid(), version))
    held = ctypes.create_string_buffer(code)
    program = struct.pack("HP", len(code) // 8, ctypes.addressof(held))
    _must(libc.prctl(SET_SECCOMP, FILTER_MODE, program, 0, 0), "seccomp")


def system_calls(machine: str, pid: int, version: int) -> list[Instruction]:
    """The filter for seccomp, in the kernel's packet filter language (linux/filter.h)."""
    column, name = MACHINES[machine]
    checked: list[tuple[str, tuple[Condition, ...]]] = [
        ("clone 56 220", ((0, ANY, OWN_THREAD),)),
        ("tgkill 234 131", ((0, ANY, (pid,)),)),
        ("prlimit64 302 261", ((0, ANY, (0,)), (4, ANY, (0,)), (5, ANY, (0,)))),  # own ones are read
        ("prctl 157 167", ((0, ANY, (15, 16)),)),  # the name of a thread
        ("fcntl 72 25", ((2, ANY, OF_FILES),)),
        ("ioctl 16 29", ((2, ANY, OF_TERMINALS_AND_COPIES),)),
        ("mkdir 83 -", ((2, OWNER_BITS, (OWNER_BITS,)),)),  # so that the folder can be removed afterwards
        ("mkdirat 258 34", ((4, OWNER_BITS, (OWNER_BITS,)),)),
        ("umask 95 166", ((0, OWNER_BITS, (0,)),)),
    ]
    if version >= 3:
        checked += [("open 2 -  openat 257 56  truncate 76 45", ())]
    else:  # Landlock does not know yet that a file that is opened for reading may be emptied
        mask = os.O_ACCMODE | os.O_TRUNC
        checked += [("open 2 -", ((2, mask, OPEN_MODES),)), ("openat 257 56", ((4, mask, OPEN_MODES),))]
    code: list[Instruction] = [(LOAD, 0, 0, 4), (IS, 1, 0, name), (ANSWER, 0, 0, KILL), (LOAD, 0, 0, 0)]
    for number in _numbers(ALLOWED, column):
        code += _answer(number, ALLOW)
    for number in _numbers(NO_ATTRIBUTES, column):
        code += _answer(number, ERROR | errno.ENOTSUP)
    for table, conditions in checked:
        for number in _numbers(table, column):
            code += _answer(number, ALLOW, conditions)
    new = (AT_LEAST, 0, 1, FIRST_NEW)
    return [*code, new, (ANSWER, 0, 0, ERROR | errno.ENOSYS), (ANSWER, 0, 0, ERROR | errno.EPERM)]


def _numbers(table: str, column: int) -> list[int]:
    words = table.split()
    return [int(word) for word in words[1 + column :: 3] if word != "-"]


def _answer(number: int, answer: int, conditions: tuple[Condition, ...] = ()) -> list[Instruction]:
    """Answers a system call; with an error if one of its arguments is not as it may be."""
    code: list[Instruction] = []
    for word, mask, values in conditions:
        code += [(LOAD, 0, 0, 16 + 4 * word), (AND, 0, 0, mask)]
        code += [(IS, len(values) - place, 0, value) for place, value in enumerate(values)]
        code.append((ANSWER, 0, 0, ERROR | errno.EPERM))
    code.append((ANSWER, 0, 0, answer))
    return [(IS, 0, len(code), number), *code]
