"""A simulated in-memory disk that can lose power, fill up and fail.

It implements `storage.files.Files` with the guarantees stated there, so it can replace a real disk
everywhere. In addition, it can

- lose power: `crash_states()` enumerates possible outcomes of a power cut at this moment, and
  `after_crash(choice)` returns the resulting disk; `after_kill()` returns the disk after `kill -9`
  of the process, with everything that was written;
- stop at a step: `crash_at=N` raises `PowerCut` (see faults.py for steps, moments and the trace);
  `before_step` is called before each step, so that a single run can examine the crash states at
  every step;
- fail: `fail_next`, `fail_on`, `capacity_bytes`; errors have the types that `DiskFiles` raises;
- corrupt data: `flip_bit`.

The changes to the names in one folder reach the disk in order, as in a journal; otherwise the disk
guarantees no more than POSIX. The name of a new file is not durable until its folder is synced
with `sync_dir`, and the name of that folder is not durable until its own parent is synced. With
`sync_persists_name=True`, syncing a file also makes these names durable, as on journaling file
systems. A rename is atomic within one folder; between two folders, the old name may remain or the
new one may be missing. `list_dir` returns names in an arbitrary order.

Paths are POSIX paths; a leading slash makes no difference. The root always exists and is durable.
A removed file stays readable through open handles and mappings, but its space is freed immediately.
Truncating mapped bytes raises `AssertionError`, because it would crash a real process. So does
`LogFile.overwrite` past the end, because `LogFile.size` would silently become wrong. There must be
only one writer; other threads may call `sync`.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import random
import zlib
from collections.abc import Callable, Iterator

from strandlog.errors import StorageError
from strandlog.model import Buffer
from strandlog.storage.files import (
    DIRECTORY,
    TEMP_SUFFIX,
    Lock,
    LogFile,
    MappedFile,
)
from strandlog.testing.disk import crash_states
from strandlog.testing.disk.crash_outcome import CrashChoice, crashed_tree, describe
from strandlog.testing.disk.disk import SimulatedDisk, os_error, split_path
from strandlog.testing.disk.faults import Fault, Moment, Operation, Script, Step
from strandlog.testing.disk.handles import (
    SimulatedLock,
    SimulatedLogFile,
    SimulatedMap,
    disk_errors,
)
from strandlog.testing.disk.nodes import (
    FolderNode,
    NameChange,
    Node,
    copy_tree,
    possible_nodes,
)

ENDLESS_BYTES = 1 << 50  # the free space of a disk without capacity_bytes
FOLDER_BYTES = 4096  # the size of a folder according to stat


class SimulatedFiles:
    """An in-memory implementation of `Files` that simulates disk failures."""

    __slots__ = ("_disk",)

    def __init__(
        self,
        *,
        crash_at: int | None = None,
        crash_moment: Moment = "before",
        torn_bytes: int | None = None,
        before_step: Callable[[Step], None] | None = None,
        sync_persists_name: bool = False,
        capacity_bytes: int | None = None,
        _root: FolderNode | None = None,
    ) -> None:
        self._disk = SimulatedDisk(
            _root,
            Script(),
            sync_persists_name=sync_persists_name,
            capacity_bytes=capacity_bytes,
        )
        self.stop_at(crash_at, crash_moment, torn_bytes)
        self.watch(before_step)

    # ---- Files ----

    def open_log(self, path: str) -> LogFile:
        with disk_errors("open", path):
            return SimulatedLogFile(self._disk, path, self._disk.open(path))

    def map(self, path: str) -> MappedFile:
        with disk_errors("map", path):
            node = self._disk.find_file(path)
            self._disk.may_fail("map", path)
            return SimulatedMap(node)

    def read(self, path: str) -> bytes:
        with disk_errors("read", path):
            node = self._disk.find_file(path)
            self._disk.may_fail("read", path)
            return node.frozen_contents()

    def read_at(self, path: str, position: int, length: int) -> bytes:
        return self.read(path)[position : position + length]

    def size(self, path: str) -> int:
        with disk_errors("stat", path):
            node = self._disk.find(path)
            return FOLDER_BYTES if isinstance(node, FolderNode) else len(node.contents)

    def exists(self, path: str) -> bool:
        try:
            self._disk.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list_dir(self, path: str) -> dict[str, int]:
        with disk_errors("list", path, NotADirectoryError):
            folder = self._disk.find_folder(path)
            self._disk.may_fail("list", path)
        # A deterministic order that is not sorted by name.
        names = sorted(folder.names.items(), key=lambda item: zlib.crc32(item[0].encode()))
        return {
            name: DIRECTORY if isinstance(node, FolderNode) else len(node.contents)
            for name, node in names
        }

    def append_to(self, path: str, data: Buffer) -> None:
        with disk_errors("append to", path):
            node = self._disk.open(path)
            if data:
                self._disk.write("append", path, node, len(node.contents), bytes(data))

    def write_at(self, path: str, position: int, data: Buffer) -> None:
        with disk_errors("write", path):
            node = self._disk.open(path)
            if data:
                self._disk.write("overwrite", path, node, position, bytes(data))

    def truncate(self, path: str, size: int) -> None:
        with disk_errors("truncate", path):
            self._disk.cut(path, self._disk.find_file(path), size)

    def allocate(self, path: str, size: int) -> None:
        try:
            self.append_to(path, bytes(size))
        except StorageError:
            self.remove(path)
            raise

    def replace(self, path: str, data: Buffer) -> None:
        temp = path + TEMP_SUFFIX
        with disk_errors("write", temp):
            node = self._disk.open(temp)
            if node.contents:
                self._disk.cut(temp, node, 0)
            if data:
                self._disk.write("append", temp, node, 0, bytes(data))
            self._disk.sync(temp, node)
        self.rename(temp, path)
        self.sync_dir(posixpath.dirname(path))

    def rename(self, source: str, target: str) -> None:
        with disk_errors("rename", source):
            source_folder, old = self._disk.find_place(source)
            target_folder, new = self._disk.find_place(target)
            node = self._disk.find(source)
            replaced = target_folder.names.get(new)
            if replaced is node:
                return
            _check_rename(node, replaced, source, target)

            def move() -> None:
                node.label = target
                if source_folder is target_folder:
                    source_folder.change(NameChange(old, new, node))
                else:
                    target_folder.change(NameChange(None, new, node))
                    source_folder.change(NameChange(old, None, None))

            self._disk.step("rename", source, f"-> {target}", move)

    def remove(self, path: str) -> None:
        with disk_errors("remove", path), contextlib.suppress(FileNotFoundError):
            self._disk.find_file(path)
            self._drop(path)

    def make_dir(self, path: str) -> bool:
        is_new = False
        with disk_errors("create", path):
            parts = split_path(path)
            folder = self._disk.root
            for depth, name in enumerate(parts, start=1):
                here = "/".join(parts[:depth])
                node = folder.names.get(name)
                is_new = node is None
                if node is None:
                    self._disk.find_place(here)  # raises if the name is too long
                    node = self._disk.make_folder(folder, name, here)
                if not isinstance(node, FolderNode):
                    last = depth == len(parts)
                    raise os_error(errno.EEXIST if last else errno.ENOTDIR, path)
                folder = node
        return is_new

    def remove_tree(self, path: str) -> None:
        with disk_errors("remove", path), contextlib.suppress(FileNotFoundError):
            folder = self._disk.find_folder(path)
            for name, node in list(folder.names.items()):
                child = f"{path}/{name}"
                if isinstance(node, FolderNode):
                    self.remove_tree(child)
                else:
                    self._drop(child)
            self._drop(path)

    def sync_file(self, path: str) -> None:
        with disk_errors("sync", path):
            node = self._disk.find(path)
            if isinstance(node, FolderNode):
                self._disk.sync_folder(path, node)
            else:
                self._disk.sync(path, node)

    def sync_dir(self, path: str) -> None:
        with disk_errors("sync", path):
            self._disk.sync_folder(path, self._disk.find_folder(path))

    @property
    def can_sync_file_system(self) -> bool:
        return True

    def sync_file_system(self, path: str) -> None:
        """Sync the folder and everything in it, but not the rest of the disk."""
        for name, size in self.list_dir(path).items():
            each = posixpath.join(path, name)
            if size == DIRECTORY:
                self.sync_file_system(each)
            else:
                self.sync_file(each)
        self.sync_dir(path)

    def lock(self, path: str) -> Lock | None:
        with disk_errors("lock", path):
            node = self._disk.open(path)
            self._disk.may_fail("lock", path)
            folder, _ = self._disk.find_place(path)
            is_taken = node.locked or folder.locked
            return None if is_taken else SimulatedLock(node, folder)

    def _look_at_disk(self, path: str) -> None:
        try:
            with disk_errors("stat", path):
                self._disk.find(path)
        except FileNotFoundError as error:
            raise StorageError(f"could not read the disk usage of {path}: {error}") from error

    def free_bytes(self, path: str) -> int:
        self._look_at_disk(path)
        if self._disk.capacity_bytes is None:
            return ENDLESS_BYTES
        return max(self._disk.capacity_bytes - self._disk.used_bytes(), 0)

    def total_bytes(self, path: str) -> int:
        self._look_at_disk(path)
        return self._disk.capacity_bytes or ENDLESS_BYTES

    # ---- failures ----

    @property
    def trace(self) -> list[Step]:
        """All steps on this disk. The number of the last step is the length of the list."""
        return self._disk.script.trace

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity of the disk. A test can change it at any time, even below the used space."""
        return self._disk.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, capacity: int | None) -> None:
        self._disk.capacity_bytes = capacity

    def stop_at(
        self, step: int | None, moment: Moment = "before", torn_bytes: int | None = None
    ) -> None:
        """Schedule a `PowerCut` at this step of this disk, like `crash_at`. None cancels it."""
        self._disk.script.stop_at(step, moment, torn_bytes)

    def watch(self, before_step: Callable[[Step], None] | None) -> None:
        """Set a function to call before each step, after the previous one has taken effect."""
        self._disk.script.before_step = before_step

    def crash_states(
        self, budget: int | None = None, rng: random.Random | None = None
    ) -> Iterator[CrashChoice]:
        """Yield possible outcomes of a power cut right now, in the order described in
        crash_states.py.

        Random choices use the rest of the budget, so `rng` has no effect without a budget. The disk
        must not be changed during the iteration.
        """
        return crash_states.crash_states(self._disk.root, budget, rng)

    def random_crash(self, rng: random.Random) -> CrashChoice:
        """Return a random outcome of a power cut right now."""
        return crash_states.random_choice(self._disk.root, rng)

    def describe(self, choice: CrashChoice) -> str:
        """Describe the choice in words."""
        return describe(choice, possible_nodes(self._disk.root))

    def after_crash(self, choice: CrashChoice) -> SimulatedFiles:
        """Return a new disk with the state after a crash. This disk is not changed."""
        return self._successor(crashed_tree(self._disk.root, choice))

    def after_kill(self) -> SimulatedFiles:
        """Return the disk after `kill -9`: it contains everything that was written, and unsynced
        data is still unsynced.

        This is also the way to fork a disk: the two disks share all bytes until one changes them.
        """
        return self._successor(copy_tree(self._disk.root))

    def sync_everything(self) -> None:
        """Make everything durable. This is not a step, because only tests call it."""
        self._disk.sync_everything()

    def contents(self) -> dict[str, bytes]:
        """Return the contents of every file as a reader sees them, by path."""
        found: dict[str, bytes] = {}
        _collect(self._disk.root, "", found)
        return found

    def fail_next(self, operation: Operation, error: int = errno.EIO) -> None:
        """Make the next operation of this kind fail."""
        self.fail_on(operation, error=error)

    def fail_on(
        self,
        operation: Operation,
        path_substring: str = "",
        *,
        count: int = 1,
        skip: int = 0,
        error: int = errno.EIO,
        written_bytes: int | None = None,
    ) -> None:
        """Make `count` operations on matching paths fail after `skip` of them have succeeded.

        A write fails after writing `written_bytes` bytes, or half of its data if None.
        """
        fault = Fault(operation, path_substring, count, skip, error, written_bytes)
        self._disk.script.add_fault(fault)

    def clear_faults(self) -> None:
        """Cancel all scheduled faults."""
        self._disk.script.clear_faults()

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip one bit of a file. Bit 0 is the lowest bit of the first byte."""
        node = self._disk.find_file(path)
        assert 0 <= bit < 8 * len(node.contents), f"{path} has {8 * len(node.contents)} bits"
        node.flip_bit(bit)

    def _drop(self, path: str) -> None:
        folder, name = self._disk.find_place(path)
        self._disk.rename_in(folder, "remove", path, "", NameChange(name, None, None))

    def _successor(self, root: FolderNode) -> SimulatedFiles:
        return SimulatedFiles(
            sync_persists_name=self._disk.sync_persists_name,
            capacity_bytes=self._disk.capacity_bytes,
            _root=root,
        )


def _check_rename(node: Node, replaced: Node | None, source: str, target: str) -> None:
    """Raise the error that rename(2) would return, if any."""
    parts = split_path(source)
    if split_path(target)[: len(parts)] == parts:
        raise os_error(errno.EINVAL, source)
    if replaced is None:
        return
    if isinstance(replaced, FolderNode):
        if not isinstance(node, FolderNode):
            raise os_error(errno.EISDIR, target)
        if replaced.names:
            raise os_error(errno.ENOTEMPTY, target)
    elif isinstance(node, FolderNode):
        raise os_error(errno.ENOTDIR, target)


def _collect(folder: FolderNode, prefix: str, found: dict[str, bytes]) -> None:
    for name, node in sorted(folder.names.items()):
        if isinstance(node, FolderNode):
            _collect(node, f"{prefix}{name}/", found)
        else:
            found[prefix + name] = node.frozen_contents()
