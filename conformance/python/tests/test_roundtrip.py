"""Writer and reader agree, for all dtypes and all combinations of codings."""
import os
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout

from deltachain_py import in_place, link as dcf
from deltachain_py import safetensors, writer
from tool import main
from deltachain_py.errors import DcfError
from deltachain_py.index import ABSOLUTE, DENSE, PATCH, PLANES, SMALL, SPARSE
from deltachain_py.model import BY_NAME, DTYPES, Tensor
from deltachain_py.writer import Options
from tests.helper import mutate, random_state, random_tensor, rule_of, seeded, verify


class RoundTrip(unittest.TestCase):
    def there(self, base, target, options=Options(), metadata=None):
        data = writer.diff(base, target, options, metadata)
        link = dcf.parse(data)
        self.assertEqual(dcf.apply(data, base), target)
        verify(data)
        # serialize(parse(x)) = x. The streams are copied verbatim, so only header and index have to be compared.
        self.assertEqual(link.header.encode(), data[:128])
        stored = data[128:128 + link.header.index_stored]
        self.assertEqual(writer.write_stream(link.index.encode(), options.level, checksum=True), stored)
        if len(stored) < link.header.index_raw:
            self.assertEqual(stored[4] & 4, 4)  # R-STR-08
        if base != target:
            self.assertEqual(rule_of(dcf.apply, data, target), "R-APP-01")  # a second apply is refused
        if options.profile == "local":
            self.assertIsNotNone(in_place.link_sums(link))
            if all(entry.operation == PATCH for entry in link.index.tensors):
                self.assertEqual(in_place.in_place([data], base), target)
        return link

    def test_profiles(self):
        rng = seeded(1)
        for density in (0.01, 0.1, 0.5, 1):
            base = random_state(rng)
            target = mutate(rng, base, density)
            for profile in ("direct", "compact", "local"):
                link = self.there(base, target, Options(profile=profile), {"step": "7", "é": "\0"})
                self.assertEqual(link.index.metadata, [("step", "7"), ("é", "\0")])
                if profile == "direct":
                    self.assertEqual(link.profile, "direct")
            self.there({}, target)
            self.there(target, {})
            self.there(base, base)

    def test_all_codings(self):
        rng = seeded(2)
        combinations = [(DENSE, ABSOLUTE), (SPARSE, ABSOLUTE), (DENSE, PLANES), (SPARSE, PLANES), (SPARSE, SMALL)]
        groups = [[d for d in DTYPES.values() if d.lane_bytes == width] for width in (1, 2, 4, 8)]
        for dtypes in groups:
            base = random_state(rng, dtypes, 60)
            target = mutate(rng, base, 0.4)
            for positions, values in combinations:
                for contexts in (1,) if values == ABSOLUTE else (1, 2, 3, 16):
                    for parameters in [None] if positions == DENSE else ([0], [3], [23], [32], [32, 1, 0]):
                        for widths in [None] if values != SMALL else ([1], [2, 4], [8]):
                            link = self.there(base, target, Options(
                                positions=positions, values=values, contexts=contexts, position_parameters=parameters,
                                widths=widths))
                            coding = link.index.segments[0].coding
                            self.assertEqual((coding.positions, coding.values), (positions, values))
                            self.assertEqual(len(link.index.segments), 1)

    def test_every_number_of_contexts(self):
        rng = seeded(3)
        base = random_state(rng, [BY_NAME["BF16"], BY_NAME["F16"]], 200)
        target = mutate(rng, base, 0.3)
        for contexts in range(1, 17):
            self.there(base, target, Options(contexts=contexts))
            self.there(base, target, Options(contexts=contexts, positions=DENSE))

    def test_structure(self):
        u8, bf16 = BY_NAME["U8"], BY_NAME["BF16"]
        base = {"gone": Tensor(u8, (2,), b"ab"), "same": Tensor(u8, (2,), b"cd"), "shape": Tensor(u8, (4,), b"abcd"),
                "dtype": Tensor(u8, (2,), b"ab"), "grow": Tensor(u8, (1,), b"a")}
        target = {"same": base["same"], "shape": Tensor(u8, (2, 2), b"abcd"), "dtype": Tensor(bf16, (1,), b"ab"),
                  "grow": Tensor(u8, (2,), b"ab"), "empty": Tensor(bf16, (0, 2**64 - 1), b""),
                  "": Tensor(u8, (), b"x"), "zero": Tensor(bf16, (3,), bytes(6)), "é\0": Tensor(u8, (), b"y")}
        link = self.there(base, target)
        names = [entry.name for entry in link.index.tensors]
        self.assertEqual(names, ["", "dtype", "empty", "gone", "grow", "shape", "zero", "é\0"])
        self.there(target, base)
        self.there(base, target, Options(segment_bytes=1))

    def test_pieces(self):
        data = bytearray(2**24 + 4)
        base = {"t": Tensor(BY_NAME["F32"], (2**22 + 1,), bytes(data))}
        data[8] = data[-1] = 1
        target = {"t": Tensor(BY_NAME["F32"], (2**22 + 1,), bytes(data))}
        file = writer.diff(base, target, Options(profile="direct"))
        self.assertEqual(dcf.apply(file, base), target)
        self.assertTrue(dcf.patches(dcf.parse(file)) == {("t", 0): [(2, 1)], ("t", 1): [(0, 1 << 24)]})

    def test_patches(self):
        rng = seeded(4)
        base = random_state(rng, [BY_NAME["BF16"]])
        target = mutate(rng, base, 0.5)
        with self.assertRaises(DcfError) as caught:
            dcf.patches(dcf.parse(writer.diff(base, target, Options(values=PLANES))))
        self.assertEqual(caught.exception.error_class, "UNSUPPORTED")

    def test_command_line(self):
        rng = seeded(5)
        with tempfile.TemporaryDirectory() as folder:
            base, target, link, result = (os.path.join(folder, name) for name in "abcd")
            state = random_state(rng)
            safetensors.write(base, state)
            safetensors.write(target, mutate(rng, state, 0.1) | {"new": random_tensor(rng, BY_NAME["F64"])})
            with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
                self.assertEqual(main(["diff", "--base", base, target, "-o", link, "--profile", "direct"]), 0)
                self.assertEqual(main(["apply", "--base", base, link, "-o", result]), 0)
                self.assertEqual(main(["verify", link]), 0)
                self.assertEqual(main(["apply", "--base", target, link, "-o", result]), 1)
                self.assertEqual(main(["digest", base]), 0)
                self.assertEqual(main(["diff", target, "-o", link]), 0)
                self.assertEqual(main(["apply", link, "-o", result]), 0)
                self.assertEqual(main(["verify", base]), 1)
                with self.assertRaises(SystemExit) as caught:
                    main(["apply"])
                self.assertEqual(caught.exception.code, 2)
            self.assertEqual(safetensors.read(result), safetensors.read(target))


if __name__ == "__main__":
    unittest.main()
