use std::future::ready;

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response, StatusCode, header::AUTHORIZATION};
use tonic::transport::Channel;
use tonic::{Code, IntoRequest, IntoStreamingRequest, Status};
use tower::{ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::endpoint::{authorization, endpoint};
use crate::error::{Result, between, expired, unanswered};
use crate::identifiers::identified;
use crate::liaison::v1::{WatchEventsRequest, WatchEventsResponse, liaison_service_client::LiaisonServiceClient};
use crate::service_config::MethodConfig;
use crate::timeout;
use crate::v1::{cstp_service_client::CstpServiceClient, journal_service_client::JournalServiceClient, *};

/// The longest answer that is taken; tonic's own bound is less than what a long list takes.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// How to reach a server, besides its address.
#[derive(Clone, Default)]
pub struct Options {
    /// The token that every call carries.
    pub token: Option<String>,
    /// Certificates in PEM to trust instead of those of the system.
    pub root_certificates: Option<Vec<u8>>,
    /// How often a call is tried at the most, instead of what the service config says.
    pub attempts: Option<u32>,
}

/// A channel on which calls carry the token, keep their deadlines and are repeated; all stubs run on it.
pub type Connection = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

/// Announces intents, finds decisions and checks guardrails; the last of its clones closes the connection of all.
#[derive(Clone, Debug)]
pub struct Client(Connection);

impl Client {
    /// Returns a client for an address like `grpcs://host:port`, which it connects to with the first call.
    ///
    /// Must be called within a Tokio runtime. Fails where the address or the options cannot be used.
    pub fn new(target: &str, options: Options) -> Result<Self> {
        let token = options.token.as_deref().map(authorization).transpose()?;
        let (channel, attempts) = (endpoint(target, options.root_certificates)?.connect_lazy(), options.attempts);
        Ok(Self(Connection::new(service_fn(move |mut request: Request<Body>| {
            request.headers_mut().extend(token.clone().map(|token| (AUTHORIZATION, token)));
            send(channel.clone(), request, attempts)
        }))))
    }

    /// Returns a stub of any service of the contract: `client.stub(AuditServiceClient::new)`. Of answers it takes 4 MiB,
    /// or as many bytes as its own `max_decoding_message_size` says.
    pub fn stub<S>(&self, new: impl FnOnce(Connection) -> S) -> S {
        new(self.0.clone())
    }

    fn cstp(&self) -> CstpServiceClient<Connection> {
        self.stub(CstpServiceClient::new).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// Announces an intent, under a correlation id that is made up where it has none.
    pub async fn announce_intent(&self, of: impl IntoRequest<AnnounceIntentRequest>) -> Result<AnnounceIntentResponse> {
        Ok(self.cstp().announce_intent(of).await?.into_inner())
    }

    /// Finds past decisions that resemble a text.
    pub async fn query_decisions(&self, of: impl IntoRequest<QueryDecisionsRequest>) -> Result<QueryDecisionsResponse> {
        Ok(self.cstp().query_decisions(of).await?.into_inner())
    }

    /// Judges an action by the guardrails.
    pub async fn check_guardrails(
        &self,
        of: impl IntoRequest<CheckGuardrailsRequest>,
    ) -> Result<CheckGuardrailsResponse> {
        Ok(self.cstp().check_guardrails(of).await?.into_inner())
    }

    /// Imports a stream of decisions, which is read to its end before it is sent, so that it can be repeated.
    pub async fn import_decisions<S>(&self, of: S) -> Result<ImportDecisionsResponse>
    where
        S: IntoStreamingRequest<Message = ImportDecisionsRequest>,
    {
        Ok(self.stub(JournalServiceClient::new).import_decisions(of).await?.into_inner())
    }

    /// Watches the events of a chat session, until the stream is dropped or its deadline is reached.
    pub async fn watch_events<R>(&self, of: R) -> Result<impl Stream<Item = Result<WatchEventsResponse>> + use<R>>
    where
        R: IntoRequest<WatchEventsRequest>,
    {
        Ok(self.stub(LiaisonServiceClient::new).watch_events(of).await?.into_inner().map_err(Into::into))
    }
}

/// Makes a call within its deadline, with as many attempts as it may have.
async fn send(channel: Channel, request: Request<Body>, attempts: Option<u32>) -> Result<Response<Body>, Status> {
    let config = MethodConfig::find(request.uri().path());
    let timeout = timeout::read(request.headers()).or(config.and_then(MethodConfig::timeout));
    let deadline = Instant::now() + timeout.unwrap_or(timeout::UNLIMITED);
    let call = async {
        let Some(config) = config else { return watch(channel, request, deadline).await };
        let (mut parts, body) = request.into_parts();
        let body = Full::new(identified(parts.uri.path(), body.collect().await?.to_bytes()));
        let mut attempt = 1;
        loop {
            parts.headers.insert(timeout::HEADER, timeout::until(deadline));
            let answer = once(channel.clone(), Request::from_parts(parts.clone(), Body::new(body.clone()))).await;
            match answer.as_ref().err().and_then(|status| config.pause(status, attempt, attempts)) {
                Some(pause) if Instant::now() + pause < deadline => sleep(pause).await,
                _ => return answer,
            }
            attempt += 1;
        }
    };
    match timeout_at(deadline, call).await {
        Ok(answer) if answer.is_ok() || Instant::now() < deadline => answer,
        _ => Err(expired()),
    }
}

/// Makes one attempt of a call with one answer.
async fn once(channel: Channel, request: Request<Body>) -> Result<Response<Body>, Status> {
    let (parts, body) = response(channel, request).await?.into_parts();
    let body = body.collect().await.map_err(unanswered)?;
    match Status::from_header_map(body.trailers().unwrap_or(&parts.headers)) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(Response::from_parts(parts, Body::new(body))),
    }
}

/// Returns the response to one attempt of a call; what is not of gRPC is the failure of something between.
async fn response(channel: Channel, request: Request<Body>) -> Result<Response<Body>, Status> {
    let response = channel.oneshot(request).await.map_err(unanswered)?;
    let answered = response.status() == StatusCode::OK || response.headers().contains_key(Status::GRPC_STATUS);
    if answered { Ok(response) } else { Err(between(response.status())) }
}

/// Makes a call with a stream of answers, which ends at the deadline.
async fn watch(channel: Channel, request: Request<Body>, deadline: Instant) -> Result<Response<Body>, Status> {
    let response = response(channel, request).await?;
    let end = stream::once(ready(Err(expired()))).filter(move |_| ready(Instant::now() >= deadline));
    let bounded = |body| BodyStream::new(body).take_until(sleep_until(deadline)).chain(end);
    Ok(response.map(|body| Body::new(StreamBody::new(bounded(body)))))
}
