"""What the doctor looks at in a data folder: may it be written, how fast, by whom is it owned, did
it stop cleanly, is anything obviously damaged.

Nothing is opened as an owner would and nothing is changed; a small file is written and removed to
see whether that works and how long a sync takes. Batches are not read: `strandlog log verify` is
for that.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress

from strandlog.broker.topics.catalog import CATALOG_FILE
from strandlog.cli.doctor.result import Check, fail, ok, warn
from strandlog.cli.folder_owner import owner_of
from strandlog.cli.output import counted, size_text
from strandlog.errors import FolderError, StorageError, UnknownLayoutError
from strandlog.storage import paths
from strandlog.storage.files import DIRECTORY, DiskFiles
from strandlog.storage.folder.identity import check_layout
from strandlog.storage.paths import join
from strandlog.storage.readonly.dump import partition_folders, read_time_index, verify_state

SYNCS = 8
SYNC_BYTES = 4096
SLOW_SYNC_MS = 20.0
FEW_INODES = 1000
MEMORY_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs"}
CONTAINER_SYSTEMS = {"overlay", "aufs"}
NETWORK_SYSTEMS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "glusterfs", "ceph", "afs", "lustre")


def check_folder(path: str, min_free_bytes: int) -> Iterator[Check]:
    """Everything about one folder; stops where the rest has no meaning."""
    files = DiskFiles()
    try:
        check_layout(files, path)
        is_there = files.exists(path)
    except (FolderError, StorageError) as error:
        advice = "point at another folder, or restore what the message names from a copy"
        yield fail("folder", str(error), advice)
        return
    home = path if is_there else _nearest_parent(path)
    if is_there and files.exists(join(path, paths.META_PROPERTIES)):
        count = len(partition_folders(files, path))
        yield ok("folder", f"{path}, {counted(count, 'partition')}")
    else:
        state = "is empty" if is_there else "is not there yet"
        yield ok("folder", f"{path} {state}; serve fills it")
    yield judged_space(home, os.statvfs(home), min_free_bytes)
    yield judged_file_system(home, file_system_of(home, _mounts()))
    yield _write_check(files, home)
    if is_there:
        try:
            yield from _state_checks(files, path)
        except StorageError as error:
            yield fail("folder", str(error), "let this user read it, or ask as its owner")


def _nearest_parent(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "."
    return path


# -- the disk --------------------------------------------------------------------------------------


def judged_space(path: str, found: os.statvfs_result, min_free_bytes: int) -> Check:
    """Whether there is room, in bytes and in files."""
    free = found.f_bavail * found.f_frsize
    total = max(1, found.f_blocks * found.f_frsize)
    seen = f"{size_text(free)} of {size_text(total)} free ({100 * free // total} %)"
    shorten = "free some space, shorten retention (log.retention.ms, log.retention.bytes)"
    if free < min_free_bytes:
        limit = size_text(min_free_bytes)
        text = f"{seen}; appends are refused below {limit} (log.min.free.bytes)"
        return fail("disk space", text, f"{shorten}, or move the folder; reading still works")
    if found.f_files and found.f_favail < FEW_INODES:
        text = f"{seen}, but only {found.f_favail} more files fit (inodes)"
        return warn("disk space", text, f"remove small files around {path}; a partition needs ten")
    if free < 4 * min_free_bytes or 20 * free < total:
        return warn("disk space", seen, f"{shorten} before it is full")
    return ok("disk space", seen)


def _mounts() -> str:
    with suppress(OSError):
        return DiskFiles().read("/proc/mounts").decode(errors="replace")
    return ""


def file_system_of(path: str, mounts: str) -> str:
    """The kind of file system that holds a path; "" when it cannot be told."""
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


def judged_file_system(path: str, kind: str) -> Check:
    """Whether what is synced there stays."""
    name = "file system"
    if kind in MEMORY_SYSTEMS:
        advice = "use a folder on a disk, unless this is for a test"
        return warn(name, f"{path} is in memory ({kind}): a restart empties it", advice)
    if kind in CONTAINER_SYSTEMS:
        advice = "mount a volume there"
        return warn(name, f"{path} is a container's own layer ({kind}): it goes with it", advice)
    if kind.startswith(NETWORK_SYSTEMS):
        text = f"{path} is on the network ({kind}): locks and syncs may not hold what they promise"
        return warn(name, text, "use a local disk; at least make sure that no two owners start")
    return ok(name, kind or "cannot be told on this system")


def _write_check(files: DiskFiles, home: str) -> Check:
    """Write and sync a small file a few times."""
    probe = join(home, f".doctor-{os.getpid()}")
    times: list[float] = []
    try:
        handle = files.open_log(probe)
        try:
            for _ in range(SYNCS):
                handle.append([bytes(SYNC_BYTES)])
                began = time.perf_counter()
                handle.sync()
                times.append(1000 * (time.perf_counter() - began))
        finally:
            handle.close()
            files.remove(probe)
    except (StorageError, OSError) as error:
        owner = os.stat(home).st_uid
        text = f"{error} (we are user {os.geteuid()}, {home} belongs to user {owner})"
        return fail("writing", text, f"chown or chmod {home}, mount it writable, or free space")
    return judged_syncs(times)


def judged_syncs(times_ms: list[float]) -> Check:
    """Whether syncs are quick enough to wait for."""
    median, worst = statistics.median(times_ms), max(times_ms)
    seen = f"{counted(len(times_ms), 'sync')}: median {median:.1f} ms, worst {worst:.1f} ms"
    if median > SLOW_SYNC_MS:
        return warn(
            "writing",
            f"{seen}; with acks=all every producer waits for one",
            "use a faster disk, send larger batches, or take log.durability=page_cache if a "
            "power cut may cost the last second",
        )
    return ok("writing", seen)


# -- the log in it ---------------------------------------------------------------------------------


def _state_checks(files: DiskFiles, path: str) -> Iterator[Check]:
    if not files.exists(join(path, paths.META_PROPERTIES)):
        return
    owner = owner_of(files, path)
    yield ok("owner", owner or "nobody; it can be opened")
    if owner or files.exists(join(path, paths.CLEAN_SHUTDOWN)):
        yield ok("last stop", "it runs" if owner else "clean")
    else:
        yield warn(
            "last stop",
            "not clean: the last owner was killed or the power failed",
            "nothing to do: the next start checks the ends of the logs and reports what it cut",
        )
    yield _damage_check(files, path)


def _damage_check(files: DiskFiles, path: str) -> Check:
    """What shows without reading logs: checksums of state files, and what was set aside before."""
    seen = [
        f"{finding.path}: {finding.text}"
        for finding in verify_state(files, path, [CATALOG_FILE])
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
        return ok("damage", "none that shows; 'strandlog log verify' reads everything")
    more = f" and {len(seen) - 1} more" if len(seen) > 1 else ""
    advice = f"'strandlog log verify {path}' tells what can still be read"
    judge = fail if is_broken else warn
    return judge("damage", f"{seen[0]}{more}", advice)


def _listings(files: DiskFiles, path: str) -> Iterator[tuple[str, dict[str, int]]]:
    yield path, files.list_dir(path)
    for folder in partition_folders(files, path):
        with suppress(FileNotFoundError):  # its topic was deleted just now
            yield folder, files.list_dir(folder)


# -- times -----------------------------------------------------------------------------------------


def newest_times_ms(path: str) -> tuple[int | None, int | None]:
    """When the newest log file was written, and the newest timestamp that an index knows."""
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
