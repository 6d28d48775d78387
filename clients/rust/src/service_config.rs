//! What the service config says of each method, which tonic does not read by itself.

use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Value, json};
use tonic::Status;

static SERVICE_CONFIG: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("generated/service_config.json")).expect("JSON that was generated")
});

/// The part of the service config that is about one method.
#[derive(Clone, Copy)]
pub(crate) struct MethodConfig(&'static Value);

impl MethodConfig {
    /// Returns what is said of the method at a path; `None` where nothing is, as of methods with a stream of answers.
    pub(crate) fn find(path: &str) -> Option<Self> {
        let (service, method) = path.strip_prefix('/')?.split_once('/')?;
        let name = json!({"service": service, "method": method});
        let names = |config: &Value| config["name"].as_array().is_some_and(|names| names.contains(&name));
        SERVICE_CONFIG["methodConfig"].as_array()?.iter().find(|config| names(config)).map(Self)
    }

    /// How long a call may take, repetitions included.
    pub(crate) fn timeout(self) -> Option<Duration> {
        seconds(&self.0["timeout"]).map(Duration::from_secs_f64)
    }

    /// Returns how long to wait before a call is repeated whose n-th attempt failed; `None` where it is not.
    ///
    /// `attempts` is how many there may be, where that is not for the service config to say. What the server says of
    /// waiting goes before the backoff.
    pub(crate) fn pause(self, status: &Status, attempt: u32, attempts: Option<u32>) -> Option<Duration> {
        let policy = self.0.get("retryPolicy")?;
        let most = attempts.map_or_else(|| policy["maxAttempts"].as_u64(), |attempts| Some(attempts.into()))?;
        if u64::from(attempt) >= most || !policy["retryableStatusCodes"].as_array()?.iter().any(|it| names(it, status))
        {
            return None;
        }
        if let Some(pushback) = status.metadata().get("grpc-retry-pushback-ms") {
            return pushback.to_str().ok()?.parse().map(Duration::from_millis).ok();
        }
        let growth = policy["backoffMultiplier"].as_f64()?.powf(f64::from(attempt - 1));
        let bound = (seconds(&policy["initialBackoff"])? * growth).min(seconds(&policy["maxBackoff"])?);
        Some(Duration::from_secs_f64(bound * fastrand::f64()))
    }
}

/// Whether a word like `RESOURCE_EXHAUSTED` is the code of a status.
fn names(code: &Value, status: &Status) -> bool {
    code.as_str().is_some_and(|it| it.replace('_', "").eq_ignore_ascii_case(&format!("{:?}", status.code())))
}

/// Reads a duration like `0.1s`.
fn seconds(duration: &Value) -> Option<f64> {
    duration.as_str()?.strip_suffix('s')?.parse().ok()
}
