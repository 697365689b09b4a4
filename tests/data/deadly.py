"""Sources that do harm in the process that reads them; a module, so that worker processes can import it."""

import os
import signal
import time

import numpy as np
from photos import png

from vitrail.data.source import Record


class Deadly:
    """`count` small pictures; sample `at` does something to the process that reads it."""

    multilabel, shards, classes, name = False, None, ("a",), "deadly"

    def __init__(self, count, at):
        self.files = [png(i) for i in range(count)]
        self.labels = np.zeros(count, np.int64)
        self.at = at

    def __len__(self):
        return len(self.files)

    def id(self, i):
        return f"sample-{i}"

    def read(self, i):
        if i == self.at:
            self.harm()
        return Record(self.files[i], 0, self.id(i))

    def harm(self):
        raise NotImplementedError


class Crashing(Deadly):
    def harm(self):
        os.kill(os.getpid(), signal.SIGSEGV)


class MemoryHungry(Deadly):
    def harm(self):
        raise MemoryError


class Hanging(Deadly):
    def harm(self):
        time.sleep(3600)
