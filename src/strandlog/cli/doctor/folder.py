"""Checks a data folder: disk, permissions, fsync time, owner, last shutdown and visible damage.

The checks do not open the folder as its owner. They write and remove a small file, to check
permissions and measure fsyncs. They do not read any batches; `strandlog log verify` does.
"""

from __future__ import annotations

import errno
import os
import pwd
import shlex
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress

from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.folder_owner import owner_of
from strandlog.cli.output import size_text
from strandlog.config.units import counted
from strandlog.errors import FolderError, StorageError, UnknownLayoutError
from strandlog.storage import paths
from strandlog.storage.files import DIRECTORY, DiskFiles
from strandlog.storage.folder.identity import check_layout
from strandlog.storage.paths import join
from strandlog.storage.readonly.dump import read_time_index
from strandlog.storage.readonly.verify import partition_folders, verify_state

FSYNCS = 8
FSYNC_BYTES = 4096
SLOW_FSYNC_MS = 20.0
FEW_INODES = 1000
MEMORY_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
CONTAINER_SYSTEMS = {"overlay", "aufs"}
NETWORK_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "glusterfs", "ceph", "afs", "lustre")


def check_folder(path: str, min_free_bytes: int) -> Iterator[Check]:
    """Run all folder checks; stop early if the layout is invalid or unreadable."""
    files = DiskFiles()
    try:
        check_layout(files, path)
        is_there = files.exists(path)
    except (FolderError, StorageError) as error:
        advice = "choose another folder, or restore the named file from a backup"
        yield fail("folder", str(error), _denial_advice(error, path) or advice)
        return
    home = path if is_there else _nearest_parent(path)
    if is_there and files.exists(join(path, paths.META_PROPERTIES)):
        count = len(partition_folders(files, path))
        yield ok("folder", f"{path}, {counted(count, 'partition')}")
    else:
        state = "is empty" if is_there else "does not exist"
        yield ok("folder", f"{path} {state}; 'strandlog serve' initializes it")
    yield check_space(home, os.statvfs(home), min_free_bytes)
    yield check_file_system(home, file_system_of(home, _mounts()))
    yield _write_check(files, home, path)
    if is_there:
        try:
            yield from _state_checks(files, path)
        except StorageError as error:
            advice = f"'strandlog log verify {path}' shows what can still be read"
            yield fail("folder", str(error), _denial_advice(error, path) or advice)


def _denial_advice(error: Exception, path: str) -> str:
    """Return advice if missing permissions below `path` caused the error, or else ""."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, PermissionError):
        cause = cause.__cause__ or cause.__context__
    if cause is None or cause.errno == errno.EPERM:  # EPERM: not a matter of owner and mode
        return ""
    return access_advice(path, os.geteuid())


def access_advice(path: str, uid: int) -> str:
    """Return advice, usually a command, on how the user `uid` gets access to a data folder. No
    command changes a folder above it, because other users may have files there."""
    user, quoted = _user(uid), shlex.quote(path)
    try:
        owner = os.stat(path).st_uid
    except FileNotFoundError:
        return f"choose another folder, or create this one: sudo install -d -o {user} {quoted}"
    except PermissionError:
        return f"a folder above {path} denies access to user {user}: choose another folder"
    if owner == uid:
        return f"{path} belongs to this user, but its mode denies access: chmod -R u+rwX {quoted}"
    name = _user(owner)
    return (
        f"{path} belongs to user {name}: run as that user (sudo -u {name} …), or give the folder "
        f"to this user: sudo chown -R {user} {quoted}"
    )


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)  # a container may not know the users of its host


def _nearest_parent(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    return path


# -- disk --------------------------------------------------------------------------------------


def check_space(path: str, found: os.statvfs_result, min_free_bytes: int) -> Check:
    """Check free space and free inodes."""
    free = found.f_bavail * found.f_frsize
    total = max(1, found.f_blocks * found.f_frsize)
    seen = f"{size_text(free)} of {size_text(total)} free ({100 * free // total} %)"
    shorten = "free some space or shorten retention (log.retention.ms, log.retention.bytes)"
    if free < min_free_bytes:
        limit = size_text(min_free_bytes)
        text = f"{seen}; the broker rejects appends below {limit} (log.min.free.bytes)"
        return fail("disk space", text, f"{shorten}, or move the folder; reading still works")
    if found.f_files and found.f_favail < FEW_INODES:
        text = f"{seen}, but only {found.f_favail} free inodes"
        return warn(
            "disk space",
            text,
            f"delete small files on the file system of {path}; a partition needs ten inodes",
        )
    if free < 4 * min_free_bytes or 20 * free < total:
        return warn("disk space", seen, f"{shorten} before the disk is full")
    return ok("disk space", seen)


def _mounts() -> str:
    with suppress(OSError):
        return DiskFiles().read("/proc/mounts").decode(errors="replace")
    return ""


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system that contains a path, or "" if it is unknown."""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def check_file_system(path: str, kind: str) -> Check:
    """Warn about file systems that may lose fsynced data or have unreliable locks."""
    name = "file system"
    if kind in MEMORY_SYSTEMS:
        advice = "use a folder on a disk, except for tests"
        return warn(name, f"{path} is in memory ({kind}): a reboot deletes it", advice)
    if kind in CONTAINER_SYSTEMS:
        advice = "mount a volume there"
        return warn(
            name,
            f"{path} is in the container's own layer ({kind}) and is deleted with the container",
            advice,
        )
    if kind.startswith(NETWORK_SYSTEMS):
        text = f"{path} is on a network file system ({kind}): locks and fsync may be unreliable"
        return warn(
            name, text, "use a local disk, or make sure that only one process opens the folder"
        )
    return ok(name, kind or "unknown on this system")


def _write_check(files: DiskFiles, home: str, path: str) -> Check:
    """Write and fsync a small file a few times."""
    probe = join(home, f".doctor-{os.getpid()}")
    times: list[float] = []
    try:
        handle = files.open_log(probe)
        try:
            for _ in range(FSYNCS):
                handle.append([bytes(FSYNC_BYTES)])
                began = time.perf_counter()
                handle.sync()
                times.append(1000 * (time.perf_counter() - began))
        finally:
            handle.close()
            files.remove(probe)
    except (StorageError, OSError) as error:
        owner = os.stat(home).st_uid
        text = f"{error} (running as uid {os.geteuid()}; {home} belongs to uid {owner})"
        advice = f"mount {home} read-write, or free some space"
        return fail("writing", text, _denial_advice(error, path) or advice)
    return check_fsyncs(times)


def check_fsyncs(times_ms: list[float]) -> Check:
    """Check how long an fsync takes; an acks=all producer waits for one per batch."""
    median, worst = statistics.median(times_ms), max(times_ms)
    seen = f"{counted(len(times_ms), 'fsync')}: median {median:.1f} ms, worst {worst:.1f} ms"
    if median > SLOW_FSYNC_MS:
        return warn(
            "writing",
            f"{seen}; an acks=all producer waits for one per batch",
            "use a faster disk, send larger batches, or set log.durability=page_cache if losing "
            "the last second of records in a power cut is acceptable",
        )
    return ok("writing", seen)


# -- state ---------------------------------------------------------------------------------


def _state_checks(files: DiskFiles, path: str) -> Iterator[Check]:
    if not files.exists(join(path, paths.META_PROPERTIES)):
        return
    owner = owner_of(files, path)
    yield ok("owner", owner or "none; the folder can be opened")
    if owner or files.exists(join(path, paths.CLEAN_SHUTDOWN)):
        yield ok("last shutdown", "in use" if owner else "clean")
    else:
        yield warn(
            "last shutdown",
            "unclean: the last owner crashed, was killed or could not flush everything",
            "nothing to do: the next start runs recovery and reports what it truncates",
        )
    yield _damage_check(files, path)


def _damage_check(files: DiskFiles, path: str) -> Check:
    """Check for damage that shows without reading logs: bad state files and files set aside."""
    seen = [
        f"{finding.path}: {finding.text}"
        for finding in verify_state(files, path, [paths.TOPIC_CATALOG])
        if finding.kind == "damage"
    ]
    is_broken = bool(seen)
    for folder, names in _listings(files, path):
        for name in names:
            if name.endswith(paths.DAMAGED_SUFFIX):
                seen.append(f"{join(folder, name)} was set aside as damaged")
            elif name.endswith(paths.STRAY_DIR_SUFFIX):
                seen.append(f"{join(folder, name)} belongs to no topic and was set aside")
    if not seen:
        return ok("damage", "none visible; 'strandlog log verify' reads all files")
    more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
    advice = f"'strandlog log verify {path}' shows what is still readable"
    judge = fail if is_broken else warn
    return judge("damage", f"{seen[0]}{more}", advice)


def _listings(files: DiskFiles, path: str) -> Iterator[tuple[str, dict[str, int]]]:
    yield path, files.list_dir(path)
    for folder in partition_folders(files, path):
        with suppress(FileNotFoundError):  # the partition's topic has just been deleted
            yield folder, files.list_dir(folder)


# -- times -----------------------------------------------------------------------------------------


def newest_times_ms(path: str) -> tuple[int | None, int | None]:
    """Return the newest modification time and the newest indexed timestamp of the active segments,
    or None for each that does not exist."""
    files = DiskFiles()
    written: list[int] = []
    stamped: list[int] = []
    try:
        folders = partition_folders(files, path)
    except UnknownLayoutError:
        return None, None
    for folder in folders:
        with suppress(FileNotFoundError):
            sizes = files.list_dir(folder)
            logs = sorted(name for name in sizes if name.endswith(paths.LOG_SUFFIX))
            if logs and sizes[logs[-1]] != DIRECTORY:
                written.append(int(os.stat(join(folder, logs[-1])).st_mtime * 1000))
                index = logs[-1].removesuffix(paths.LOG_SUFFIX) + paths.TIME_INDEX_SUFFIX
                entries = read_time_index(files, join(folder, index))
                stamped += [entry.timestamp for entry in entries]
    return max(written, default=None), max(stamped, default=None)
