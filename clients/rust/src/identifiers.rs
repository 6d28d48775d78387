//! The identifiers by which the server recognises a repetition.

use prost::Message;
use tonic::codegen::Bytes;
use uuid::Uuid;

use crate::v1::{
    AnnounceIntentRequest, PreActionRequest, RecordDecisionRequest, RecordThoughtRequest, ReviewDecisionRequest,
};

/// What comes before a message in a body: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Returns the body of a call to the method at a path with an identifier, where such a request may have one and has none.
pub(crate) fn identified(path: &str, body: Bytes) -> Bytes {
    let made = match path {
        "/cstp.v1.CstpService/AnnounceIntent" => filled(&body, |request: &mut AnnounceIntentRequest| {
            request.correlation_id.get_or_insert_with(new);
        }),
        "/cstp.v1.PreActionService/PreAction" => filled(&body, |request: &mut PreActionRequest| {
            if let Some(announcement) = &mut request.announcement {
                announcement.correlation_id.get_or_insert_with(new);
            }
        }),
        "/cstp.v1.JournalService/RecordDecision" => filled(&body, |request: &mut RecordDecisionRequest| {
            request.request_id.get_or_insert_with(new);
        }),
        "/cstp.v1.JournalService/RecordThought" => filled(&body, |request: &mut RecordThoughtRequest| {
            request.request_id.get_or_insert_with(new);
        }),
        "/cstp.v1.JournalService/ReviewDecision" => filled(&body, |request: &mut ReviewDecisionRequest| {
            request.request_id.get_or_insert_with(new);
        }),
        _ => None,
    };
    made.unwrap_or(body)
}

/// Returns the body of a changed message; `None` where it cannot be read, as where it is compressed.
fn filled<M: Message + Default>(body: &[u8], fill: impl FnOnce(&mut M)) -> Option<Bytes> {
    let (&[0, ..], message) = body.split_first_chunk::<PREFIX>()? else { return None };
    let mut message = M::decode(message).ok()?;
    fill(&mut message);
    let mut made = vec![0];
    made.extend(u32::try_from(message.encoded_len()).ok()?.to_be_bytes());
    message.encode(&mut made).ok()?;
    Some(made.into())
}

fn new() -> String {
    Uuid::new_v4().to_string()
}
