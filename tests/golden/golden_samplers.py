"""Golden index lists: torch.randperm on the CPU and torch.utils.data.DistributedSampler."""
import torch
from torch.utils.data import DistributedSampler


class Mt19937:
    """The 32-bit Mersenne Twister as PyTorch's CPU generator runs it; seeded with the seed's low 32 bits."""

    def __init__(self, seed):
        self._state, self._next = [seed & 0xFFFFFFFF], 624
        for i in range(1, 624):
            previous = self._state[-1]
            self._state.append((1812433253 * (previous ^ (previous >> 30)) + i) & 0xFFFFFFFF)

    def _refill(self):
        s = self._state
        for i in range(624):
            y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7FFFFFFF)
            s[i] = s[(i + 397) % 624] ^ (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
        self._next = 0

    def random(self):
        if self._next == 624:
            self._refill()
        y = self._state[self._next]
        self._next += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)


def randperm(n, seed):
    """torch.randperm(n, generator=torch.Generator().manual_seed(seed)), exactly.

    The whole algorithm, asserted equal to PyTorch below:
        r = [0, 1, ..., n-1]
        for i = 0 .. n-2:  z = random() % (n - i);  swap(r[i], r[i + z])
    random() is one 32-bit output of mt19937: one draw for each i, modulo bias included, none for i = n-1.
    PyTorch 2 draws 64 bits for n >= 2^32 / 20 (from its source; not asserted here).
    """
    generator, r = Mt19937(seed), list(range(n))
    for i in range(n - 1):
        z = generator.random() % (n - i)
        r[i], r[i + z] = r[i + z], r[i]
    return r


# (n, replicas)
SIZES = [(10, 1), (10, 2), (10, 3), (11, 4), (3, 8), (1, 4), (8, 8), (37, 7)]
# (shuffle, seed, epoch); seed + epoch seeds the permutation
ORDERS = [(False, 0, 0), (True, 0, 0), (True, 0, 1), (True, 7, 3)]
RANDPERM = [(0, 0), (1, 0), (2, 0), (3, 1), (5, 42), (10, 0), (10, 1), (10, 123), (100, 7), (455, 0), (700, 3),
            (10, 2**32 + 1), (10, 2**40)]


def samplers():
    """Keys: randperm/n=<n>,seed=<seed> and distributed/n=..,replicas=..,shuffle=..,drop_last=..,seed=..,epoch=..
    The latter are (replicas, samples): row r is rank r's list. All i64."""
    out = {}
    for n, seed in RANDPERM:
        expected = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        assert randperm(n, seed) == expected.tolist(), (n, seed)
        out[f"randperm/n={n},seed={seed}"] = expected
    for n in (624, 625, 1300, 5000):  # more numbers than one state of the generator; asserted, not stored
        assert randperm(n, n) == torch.randperm(n, generator=torch.Generator().manual_seed(n)).tolist()
    for n, replicas in SIZES:
        for drop_last in (False, True):
            for shuffle, seed, epoch in ORDERS:
                rows = []
                for rank in range(replicas):
                    sampler = DistributedSampler(range(n), replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last)
                    sampler.set_epoch(epoch)
                    rows.append(torch.tensor(list(sampler), dtype=torch.int64))
                out[f"distributed/n={n},replicas={replicas},shuffle={shuffle:d},drop_last={drop_last:d},"
                    f"seed={seed},epoch={epoch}"] = torch.stack(rows)
    return out, {}
