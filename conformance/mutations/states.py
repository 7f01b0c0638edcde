"""Makes random states, and small changes of them."""
from deltachain_py.model import DTYPES, Tensor


def random_tensor(rng, dtype, elements):
    """`elements` is rounded up to whole bytes. Floats have realistic exponents half of the time."""
    elements += -elements % 4 if dtype.bits < 8 else 0
    width, lanes = dtype.lane_bytes, elements * dtype.bits // 8 // dtype.lane_bytes
    if dtype.exponent_bits and rng.random() < 0.5:
        mantissa = dtype.width - 1 - dtype.exponent_bits
        middle = (1 << dtype.exponent_bits) // 2
        values = [rng.getrandbits(1) << (dtype.width - 1) | rng.randrange(max(0, middle - 9), middle + 1) << mantissa
                  | rng.getrandbits(mantissa) for _ in range(lanes)]
        data = b"".join(v.to_bytes(width, "little") for v in values)
    else:
        data = rng.randbytes(lanes * width)
    shape = rng.choice([(elements,), (1, elements), (elements // 2, 2)] if elements % 2 == 0 else [(elements,)])
    return Tensor(dtype, shape, data)


def special_lanes(dtype):
    """Returns lanes that must survive: zeros, -0, infinities, NaNs with payloads, minimum and maximum."""
    w = dtype.width
    sign, ones = 1 << (w - 1), (1 << w) - 1
    exponent = ((1 << dtype.exponent_bits) - 1) << (w - 1 - dtype.exponent_bits) if dtype.exponent_bits else sign
    return [0, 1, sign, sign | 1, ones, ones >> 1, exponent & ones, exponent | sign, exponent | 1, exponent | sign | 1]


def change_tensor(rng, tensor, density):
    """Changes some lanes: by small steps, to special values, to anything."""
    dtype, data = tensor.dtype, bytearray(tensor.data)
    width, modulus = dtype.lane_bytes, 1 << dtype.width
    special = special_lanes(dtype)
    for start in range(0, len(data), width):
        if rng.random() < density:
            lane = int.from_bytes(data[start:start + width], "little")
            kind = rng.random()
            if kind < 0.7:
                lane = (lane + rng.choice([1, 1, 1, -1, -1, 2, -2, 3, 7, -12])) % modulus
            elif kind < 0.85:
                lane = rng.choice(special)
            elif kind < 0.9:
                lane ^= modulus >> 1
            else:
                lane = rng.randrange(modulus)
            data[start:start + width] = lane.to_bytes(width, "little")
    return Tensor(dtype, tensor.shape, bytes(data))


def change_state(rng, state, density):
    return {name: change_tensor(rng, tensor, density) for name, tensor in state.items()}


def all_dtypes(rng, elements):
    return {f"t.{d.name}": random_tensor(rng, d, elements) for d in DTYPES.values()}


def specials():
    state = {}
    for dtype in DTYPES.values():
        lanes = special_lanes(dtype) * (3 if dtype.bits == 6 else 1)
        data = b"".join(lane.to_bytes(dtype.lane_bytes, "little") for lane in lanes)
        state[dtype.name] = Tensor(dtype, (len(data) * 8 // dtype.bits,), data)
    return state


def reverse_lanes(state):
    def reverse(t):
        width = t.dtype.lane_bytes
        lanes = [t.data[i:i + width] for i in range(0, len(t.data), width)]
        return Tensor(t.dtype, t.shape, b"".join(reversed(lanes)))
    return {name: reverse(tensor) for name, tensor in state.items()}
