//! Failures as the client returns them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tonic::codegen::http::StatusCode;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::BoxError;

use crate::error_reasons::reason_for_code;
use crate::v1::ErrorReason;

/// What a call comes to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

const DOMAIN: &str = "cstp";
const PREFIX: &str = "ERROR_REASON_";

/// A call that failed, or that could not be made.
#[derive(Clone, Debug)]
pub struct Error {
    /// Why, in the words of the contract; one that a later contract has is `Internal`, and in the metadata as `reason`.
    pub reason: ErrorReason,
    /// Why, for people.
    pub message: String,
    /// The fields that are wrong.
    pub violations: Vec<FieldViolation>,
    /// The guardrails that forbid it.
    pub blocks: Vec<Block>,
    /// How long to wait before the same call is made again, where the server says so.
    pub retry_delay: Option<Duration>,
    /// What else the server says, for instance the permission that is missing.
    pub metadata: BTreeMap<String, String>,
}

/// A field of a request that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldViolation {
    /// The path of the field, as in `action.stakes`.
    pub field: String,
    /// What is wrong with it.
    pub description: String,
}

/// A guardrail that forbids what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Which one it is.
    pub guardrail_id: String,
    /// What people call it.
    pub name: String,
    /// What it says.
    pub message: String,
}

impl Error {
    /// The id under which the server's log tells more; `None` where no server answered.
    pub fn request_id(&self) -> Option<&str> {
        self.metadata.get("requestId").map(String::as_str)
    }

    fn new(reason: ErrorReason, message: impl Into<String>) -> Self {
        let message = message.into();
        let (violations, blocks, metadata) = Default::default();
        Self { reason, message, violations, blocks, retry_delay: None, metadata }
    }

    /// The error of a status without details: gRPC itself answered, or something between.
    fn from_bare_status(status: &Status) -> Self {
        let message = status.message();
        let reason = match status.code() {
            // What tonic says of an answer that is longer than it takes.
            Code::OutOfRange if message.contains("message length too large") => ErrorReason::Internal,
            // Only the text tells messages beyond a limit of gRPC from other exhaustion.
            Code::ResourceExhausted if message.contains("Received message larger") => ErrorReason::InvalidArgument,
            Code::ResourceExhausted if message.contains("Sent message larger") => ErrorReason::Internal,
            // A stream that is reset comes to an end without a status.
            Code::Unknown if message.contains("missing grpc-status") => ErrorReason::Unavailable,
            code => reason_for_code(code),
        };
        Self::new(reason, message)
    }
}

/// The error of an address or an option that cannot be used.
pub(crate) fn refused(field: &str, description: &str) -> Error {
    let violation = FieldViolation { field: field.into(), description: description.into() };
    let message = format!("The {} cannot be used", field.replace('_', " "));
    Error { violations: vec![violation], ..Error::new(ErrorReason::InvalidArgument, message) }
}

/// The status of a call whose deadline is over.
pub(crate) fn expired() -> Status {
    Status::deadline_exceeded("There was no answer in time")
}

/// The status of a call that the connection failed; its message is the end of the way to the failure. hyper also calls
/// it canceled where the connection broke before the call was sent.
pub(crate) fn unanswered(error: impl Into<BoxError>) -> Status {
    let error = error.into();
    let message = format!("No server answers: {}", root_cause(&*error));
    let status = Status::from_error(error);
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled => Status::unavailable(message),
        _ => status,
    }
}

/// The status of a call that something between answered with this one of HTTP, as gRPC reads it.
pub(crate) fn between(status: StatusCode) -> Status {
    let code = match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("No server answers: HTTP {status}"))
}

/// Returns the last of the causes of an error.
pub(crate) fn root_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let Some(info) = details.error_info().filter(|info| info.domain == DOMAIN) else {
            return Self::from_bare_status(&status);
        };
        let mut metadata: BTreeMap<_, _> = info.metadata.clone().into_iter().collect();
        let known = ErrorReason::from_str_name(&format!("{PREFIX}{}", info.reason));
        let reason = known.unwrap_or_else(|| {
            metadata.entry("reason".into()).or_insert_with(|| info.reason.clone());
            ErrorReason::Internal
        });
        let violations = details.bad_request().map_or(&[][..], |bad| &bad.field_violations);
        let blocks = details.precondition_failure().map_or(&[][..], |failure| &failure.violations);
        Self {
            reason,
            message: status.message().into(),
            violations: violations.iter().map(FieldViolation::from).collect(),
            blocks: blocks.iter().map(Block::from).collect(),
            retry_delay: details.retry_info().and_then(|info| info.retry_delay),
            metadata,
        }
    }
}

impl From<&tonic_types::FieldViolation> for FieldViolation {
    fn from(violation: &tonic_types::FieldViolation) -> Self {
        Self { field: violation.field.clone(), description: violation.description.clone() }
    }
}

impl From<&tonic_types::PreconditionViolation> for Block {
    fn from(violation: &tonic_types::PreconditionViolation) -> Self {
        let tonic_types::PreconditionViolation { r#type, subject, description } = violation.clone();
        Self { guardrail_id: r#type, name: subject, message: description }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason.as_str_name().trim_start_matches(PREFIX);
        write!(out, "{reason}: {}", self.message)?;
        for violation in &self.violations {
            write!(out, "; {}: {}", violation.field, violation.description)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
