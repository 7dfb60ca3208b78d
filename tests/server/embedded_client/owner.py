"""The owner of a folder, as a process of its own: executes one command per line.

Started by test_files.py as `python owner.py FOLDER`. Each command is answered with "ok" when it is
done.
"""

from __future__ import annotations

import sys

import strandlog


def key_of(number: int) -> bytes:
    """Every third record has a key of its own, so that no compaction removes it."""
    return b"k%d" % (number % 7) if number % 3 else b"own %d" % number


def main(path: str) -> None:
    """Obey until the input ends."""
    with strandlog.open(path) as log:
        acknowledging, lazy = log.producer(acks="all"), log.producer(acks=0)
        numbers: dict[str, int] = {}
        for line in sys.stdin:
            command, *words = line.split()
            if command == "create":
                name, partitions, *settings = words
                config = dict(setting.split("=") for setting in settings)
                log.create_topic(name, int(partitions), config)
            elif command in ("send", "write"):
                topic, count, size = words[0], int(words[1]), int(words[2])
                for _ in range(count):
                    number = numbers.get(topic, 0)
                    numbers[topic] = number + 1
                    value = b"%d:" % number + bytes([number % 251]) * size
                    producer = acknowledging if command == "send" else lazy
                    producer.send(topic, value, key_of(number), partition=0)
            elif command == "compact":
                log.compact(words[0])
            elif command == "retain":
                log.enforce_retention(words[0])
            elif command == "delete":
                log.delete_topic(words[0])
            elif command == "flush":
                log.flush()
            elif command == "grow":
                log.alter_topic(words[0], partitions=int(words[1]))
            sys.stdout.write("ok\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
