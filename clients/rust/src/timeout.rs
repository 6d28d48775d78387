//! The header in which gRPC tells the time that a call may take: up to eight digits and a unit.

use std::time::Duration;

use tokio::time::Instant;
use tonic::codegen::http::{HeaderMap, HeaderValue};

pub(crate) const HEADER: &str = "grpc-timeout";
/// As good as none.
pub(crate) const UNLIMITED: Duration = Duration::from_secs(1 << 30);
/// The longest that eight digits tell in milliseconds, which are fine enough for every call.
const LONGEST: u128 = 99_999_999;

/// Returns the time that the caller of a request allows, where it tells.
pub(crate) fn read(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "H" => Duration::from_secs(3600),
        "M" => Duration::from_secs(60),
        "S" => Duration::from_secs(1),
        "m" => Duration::from_millis(1),
        "u" => Duration::from_micros(1),
        "n" => Duration::from_nanos(1),
        _ => return None,
    };
    unit.checked_mul(digits.parse().ok()?)
}

/// Returns the header of a call that may take until `deadline`, rounded up so that the caller is the first to notice.
pub(crate) fn until(deadline: Instant) -> HeaderValue {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis() + 1;
    HeaderValue::try_from(format!("{}m", left.min(LONGEST))).expect("digits and a letter")
}
