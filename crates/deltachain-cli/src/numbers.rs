//! Numbers for people: digits in groups, shares, rates. Only the display depends on numbers that
//! lose precision here.

use std::time::Duration;

use indicatif::HumanCount;

/// Formats `1234567` as `1,234,567`.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// Returns `part / whole`; `None` if `whole` is zero.
#[expect(clippy::cast_precision_loss, reason = "only shown")]
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}

/// Formats a share such as `1.58 %`. Smaller shares have more decimals.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    match ratio(part, whole).map(|ratio| ratio * 100.0) {
        None => "-".to_owned(),
        Some(share) if share != 0.0 && share < 0.095 => format!("{share:.4} %"),
        Some(share) if share < 9.95 => format!("{share:.2} %"),
        Some(share) => format!("{share:.1} %"),
    }
}

/// Returns the bits of each of `count` things that take `bytes` together.
pub(crate) fn bits_each(bytes: u64, count: u64) -> Option<f64> {
    ratio(bytes, count).map(|bytes| bytes * 8.0)
}

/// Formats a number with one decimal, or a dash.
pub(crate) fn decimal(number: Option<f64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| format!("{number:.1}"))
}

/// Formats a short time such as `3.1 ms`.
pub(crate) fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 1.0 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.1} s")
    }
}

/// Formats a count such as `1 tensor` or `2 tensors`.
pub(crate) fn counted(number: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        grouped(number as u64),
        if number == 1 { one } else { many }
    )
}

/// Divides `total` in proportion to `weights`, whose sum must fit 64 bits, or evenly if all weights
/// are 0. The shares add up to `total`.
pub(crate) fn share_out(total: u64, weights: &[u64]) -> Vec<u64> {
    let even = weights.iter().all(|&weight| weight == 0);
    let weights = weights
        .iter()
        .map(|&weight| if even { 1 } else { u128::from(weight) });
    let sum: u128 = weights.clone().sum::<u128>().max(1);
    let total = u128::from(total);
    let mut given = 0;
    let mut running = 0;
    let share = |weight| {
        running += weight;
        let before = std::mem::replace(&mut given, total * running / sum);
        // At most `total`, since `running` is at most `sum`.
        u64::try_from(given - before).unwrap_or(u64::MAX)
    };
    weights.map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(grouped)
        );
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(158, 10_000), "1.58 %");
        assert_eq!(percent(1, 100_000), "0.0010 %");
        assert_eq!(percent(0, 5), "0.00 %");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(decimal(bits_each(3, 2)), "12.0");
        assert_eq!(counted(1, "file", "files"), "1 file");
    }

    #[test]
    fn shares_add_up() {
        for weights in [
            &[1_u64, 2, 3][..],
            &[0, 0, 0],
            &[5],
            &[u64::MAX / 2, u64::MAX / 2],
            &[0, 7, 0],
        ] {
            for total in [0, 1, 100, u64::MAX] {
                assert_eq!(
                    share_out(total, weights).iter().sum::<u64>(),
                    total,
                    "{weights:?}"
                );
            }
        }
        assert_eq!(share_out(60, &[1, 2, 3]), [10, 20, 30]);
        assert!(share_out(60, &[]).is_empty());
    }
}
