//! Times single kernels on one piece of 16 MiB, and copying and comparing memory for comparison:
//! one thread, everything in memory.

use std::hint::black_box;
use std::iter::Sum;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use deltachain::format::Coding;
use deltachain::kernels::{compare, contexts, encode, patches};
use deltachain::sums::Sums;
use deltachain::tensor::{Digest, Dtype};
use deltachain::{Profile, Segment};
use deltachain_bench::{Result, synthetic};

/// An encoded piece: its dtype and lanes, and its segments.
struct Piece(Dtype, u32, Vec<(Coding, Vec<u8>)>);

impl Piece {
    fn encode(dtype: Dtype, base: &[u8], target: &[u8], profile: Profile) -> Result<Self> {
        let lanes = u32::try_from(target.len() / dtype.lane_bytes())?;
        Ok(Self(dtype, lanes, encode(dtype, base, target, profile)?))
    }

    /// Decodes streams to gaps and values, and calls `work` with each segment.
    fn decode<T: Sum>(
        &self,
        mut work: impl FnMut(Segment) -> deltachain::Result<T>,
    ) -> deltachain::Result<T> {
        let Self(dtype, lanes, segments) = self;
        let decode = |(coding, bytes): &(Coding, Vec<u8>)| {
            Segment::decode(bytes, 0, *coding, vec![(*dtype, *lanes)])
        };
        segments
            .iter()
            .map(decode)
            .map(|decoded| decoded.and_then(&mut work))
            .sum()
    }

    fn patches(&self) -> deltachain::Result<usize> {
        self.2
            .iter()
            .map(|(coding, bytes)| patches(bytes, *coding, (self.0, self.1)))
            .sum()
    }
}

fn main() -> Result {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let mut group = criterion.benchmark_group("kernels");
    for percent in [0.1, 0.35, 1.0, 5.0, 20.0] {
        let pair = synthetic("", 16, percent / 100.0)?;
        let (Some((info, base)), Some((_, target))) =
            (pair.base.iter().next(), pair.target.iter().next())
        else {
            return Err("the pair has no tensor".into());
        };
        let name = |kernel: &str| format!("{kernel}, {percent} %");
        group.throughput(Throughput::Bytes(info.bytes()));
        // Kernels that do not depend on the density are measured once.
        if percent < 0.2 {
            let mut copy = target.to_vec();
            group.bench_function("memcpy", |bencher| {
                bencher.iter(|| black_box(&mut copy).copy_from_slice(base));
            });
            group.bench_function("memcmp of equal bytes", |bencher| {
                copy.copy_from_slice(base);
                bencher.iter(|| black_box(black_box(&copy) == base));
            });
            group.bench_function("digest", |bencher| bencher.iter(|| Digest::of_bytes(base)));
            group.bench_function("sums", |bencher| bencher.iter(|| Sums::of_bytes(0, base)));
            group.bench_function("CRC-32", |bencher| bencher.iter(|| crc32fast::hash(base)));
            group.bench_function("contexts: count members", |bencher| {
                bencher.iter(|| contexts(base));
            });
        }
        group.bench_function(name("compare and extract"), |bencher| {
            bencher.iter(|| compare(base, target));
        });
        let encoded = |profile| Piece::encode(Dtype::BF16, base, target, profile);
        for profile in [Profile::Compact, Profile::Local, Profile::Direct] {
            let called = profile.name();
            let piece = encoded(profile)?;
            group.bench_function(name(&format!("encode {called}")), |bencher| {
                bencher.iter(|| encoded(profile));
            });
            group.bench_function(name(&format!("gaps and values {called}")), |bencher| {
                bencher.iter(|| piece.decode(|segment| Ok(segment.coded_lanes(0))));
            });
            let mut bytes = base.to_vec();
            group.bench_function(name(&format!("copy and apply {called}")), |bencher| {
                // Includes a copy of the base, because applying changes it in place.
                bencher.iter(|| {
                    bytes.copy_from_slice(base);
                    piece.decode(|segment| segment.apply(0, &mut bytes).map(|()| 0_u64))
                });
            });
        }
        let piece = encoded(Profile::Direct)?;
        group.bench_function(name("direct to patches"), |bencher| {
            bencher.iter(|| piece.patches());
        });
    }
    // All lanes change, as in FP32 master weights.
    let base: Vec<u8> = (0_u32..1 << 22)
        .flat_map(|i| (0x3D00_0000 + i.wrapping_mul(2_654_435_761) % (1 << 23)).to_le_bytes())
        .collect();
    let target: Vec<u8> = base
        .as_chunks()
        .0
        .iter()
        .flat_map(|lane| (u32::from_le_bytes(*lane) + 1 + u32::from(lane[0] % 5)).to_le_bytes())
        .collect();
    let encoded = || Piece::encode(Dtype::F32, &base, &target, Profile::Compact);
    let piece = encoded()?;
    group.throughput(Throughput::Bytes(base.len() as u64));
    group.bench_function("dense planes: encode", |bencher| bencher.iter(encoded));
    group.bench_function("dense planes: decode", |bencher| {
        bencher.iter(|| piece.decode(|segment| Ok(segment.coded_lanes(0))));
    });
    group.finish();
    criterion.final_summary();
    Ok(())
}
