//! Runs the cases of all clients with the servers of `make test-clients`; clients/cases.yaml tells what its words mean.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{env, fs, io, thread};

use cstp::tonic::Request;
use cstp::v1::access_service_client::AccessServiceClient;
use cstp::v1::journal_service_client::JournalServiceClient;
use cstp::v1::pre_action_service_client::PreActionServiceClient;
use cstp::v1::{ErrorReason, GetAccessRequest, QueryDecisionsRequest};
use cstp::{Client, Error, Options};
use futures_util::{StreamExt, TryStreamExt, stream};
use libtest_mimic::{Arguments, Failed, Trial};
use prost_reflect::prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Value, json};

static CONTRACT: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(&include_bytes!("../src/generated/contract.binpb")[..]).expect("a descriptor set")
});

fn main() -> ExitCode {
    let Ok(path) = env::var("CSTP_CASES") else {
        eprintln!(
            "There are no servers to test with; run `make test-clients LANGUAGES=rust` in the repository's root."
        );
        return ExitCode::FAILURE;
    };
    let read = fs::read_to_string(path).expect("the file that CSTP_CASES names can be read");
    let table: Arc<Value> = Arc::new(serde_json::from_str(&read).expect("the cases are JSON"));
    let cases = table["cases"].as_array().expect("a list of cases").clone();
    let mut trials = vec![
        trial("calls any service of the contract", &table, calls_any_service),
        trial("keeps the deadline of a stream", &table, keeps_the_deadline_of_a_stream),
        trial("repeats a call that a proxy cannot pass on now", &table, repeats_what_a_proxy_cannot_pass_on),
        trial("refuses addresses and options that cannot be used", &table, refuses_what_it_cannot_use),
    ];
    trials.extend(cases.into_iter().map(|case| {
        let name = text(&case["name"]).to_owned();
        trial(&name, &table, async move |table: &Value| run(table, &case).await)
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial<F>(name: &str, table: &Arc<Value>, test: F) -> Trial
where
    F: AsyncFnOnce(&Value) -> Result<(), Failed> + Send + 'static,
{
    let table = Arc::clone(table);
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(test(&table))
    })
}

async fn calls_any_service(table: &Value) -> Result<(), Failed> {
    let mut access = client(table, &json!({}))?.stub(AccessServiceClient::new);
    let answer = access.get_access(GetAccessRequest {}).await.map_err(Error::from)?;
    ensure(answer.get_ref().requesting_agent == "alice", || format!("{answer:?}"))?;
    let mut access = client(table, &json!({"token": "none"}))?.stub(AccessServiceClient::new);
    let error = access.get_access(GetAccessRequest {}).await.map_err(Error::from).expect_err("no token");
    ensure(error.reason == ErrorReason::AuthenticationRequired, || error.to_string())
}

async fn keeps_the_deadline_of_a_stream(table: &Value) -> Result<(), Failed> {
    let request = json!({"chat_session_id": "clients-session", "after": 0});
    let error = match client(table, &json!({}))?.watch_events(timed(parsed(&request), Some(500))).await {
        Ok(events) => events.filter_map(async |event| event.err()).boxed().next().await,
        Err(error) => Some(error),
    };
    let error = error.ok_or("the stream ended without an error")?;
    ensure(error.reason == ErrorReason::DeadlineExceeded, || error.to_string())
}

async fn repeats_what_a_proxy_cannot_pass_on(_: &Value) -> Result<(), Failed> {
    let proxy = TcpListener::bind("127.0.0.1:0")?;
    let client = Client::new(&proxy.local_addr()?.to_string(), Options::default())?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    thread::spawn(move || answer_503(proxy, &counted));
    let error = client.query_decisions(QueryDecisionsRequest::default()).await.expect_err("HTTP 503");
    ensure(error.reason == ErrorReason::Unavailable && error.message.contains("503"), || error.to_string())?;
    ensure(calls.load(Ordering::SeqCst) == 4, || format!("{calls:?} calls were made"))
}

/// Answers every call on one connection with HTTP 503, as proxies do whose server is away.
fn answer_503(proxy: TcpListener, calls: &AtomicUsize) -> io::Result<()> {
    const HEADERS: u8 = 1;
    let (mut connection, _) = proxy.accept()?;
    connection.read_exact(&mut [0; 24])?;
    connection.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])?;
    loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head)?;
        let [a, b, c, kind, _, stream @ ..] = head;
        connection.read_exact(&mut vec![0; u32::from_be_bytes([0, a, b, c]) as usize])?;
        if kind == HEADERS {
            calls.fetch_add(1, Ordering::SeqCst);
            connection.write_all(&[&[0, 0, 5, HEADERS, 5], &stream[..], &[8, 3], b"503"].concat())?;
        }
    }
}

async fn refuses_what_it_cannot_use(_: &Value) -> Result<(), Failed> {
    let with_token = |token: &str| Options { token: Some(token.into()), ..Options::default() };
    let roots = Options { root_certificates: Some(b"none".to_vec()), ..Options::default() };
    let unusable = [
        ("ftp://localhost:1", Options::default()),
        ("grpc://", Options::default()),
        ("grpcs://local host", Options::default()),
        ("grpc://localhost", Options::default()),
        ("localhost", Options::default()),
        ("grpc://localhost:1/path", Options::default()),
        ("http://me:secret@localhost:1", Options::default()),
        ("grpc://localhost:1", with_token("two\nlines")),
        ("grpc://localhost:1", with_token("two words")),
        ("grpc://localhost:1", with_token("")),
        ("grpcs://localhost:1", roots),
    ];
    for (target, options) in unusable {
        let error = Client::new(target, options).expect_err(target);
        ensure(error.reason == ErrorReason::InvalidArgument, || error.to_string())?;
        ensure(!error.violations.is_empty() && !error.message.contains("secret"), || error.to_string())?;
    }
    Ok(())
}

async fn run(table: &Value, case: &Value) -> Result<(), Failed> {
    let steps = case["steps"].as_array().cloned().unwrap_or_else(|| vec![case.clone()]);
    for step in &steps {
        judge(step, call(&client(table, case)?, step, case["timeoutMs"].as_u64()).await)?;
    }
    Ok(())
}

fn client(table: &Value, case: &Value) -> Result<Client, Failed> {
    let named = |kind: &str, default: &str| &table[format!("{kind}s")][case[kind].as_str().unwrap_or(default)];
    let options = Options {
        token: named("token", "alice").as_str().map(str::to_owned),
        root_certificates: Some(fs::read(text(&table["rootCertificates"]))?),
        attempts: case["attempts"].as_u64().map(u32::try_from).transpose()?,
    };
    Ok(Client::new(text(named("server", "plain")), options)?)
}

/// Makes the call of a step and returns its answer as JSON, or the list of its answers.
async fn call(client: &Client, step: &Value, timeout: Option<u64>) -> Result<Value, Error> {
    let request = &step["request"];
    match text(&step["call"]) {
        "announceIntent" => Ok(printed(&client.announce_intent(timed(parsed(request), timeout)).await?)),
        "queryDecisions" => Ok(printed(&client.query_decisions(timed(parsed(request), timeout)).await?)),
        "checkGuardrails" => Ok(printed(&client.check_guardrails(timed(parsed(request), timeout)).await?)),
        "importDecisions" => {
            let requests: Vec<_> = list(&step["requests"]).iter().map(parsed).collect();
            Ok(printed(&client.import_decisions(timed(stream::iter(requests), timeout)).await?))
        }
        "reviewDecision" => {
            let mut journal = client.stub(JournalServiceClient::new);
            Ok(printed(journal.review_decision(timed(parsed(request), timeout)).await?.get_ref()))
        }
        "recordThought" => {
            let mut journal = client.stub(JournalServiceClient::new);
            Ok(printed(journal.record_thought(timed(parsed(request), timeout)).await?.get_ref()))
        }
        "preAction" => {
            let mut actions = client.stub(PreActionServiceClient::new);
            Ok(printed(actions.pre_action(timed(parsed(request), timeout)).await?.get_ref()))
        }
        "recordDecision" => {
            let mut journal = client.stub(JournalServiceClient::new);
            Ok(printed(journal.record_decision(timed(parsed(request), timeout)).await?.get_ref()))
        }
        "watchEvents" => {
            let take = step["take"].as_u64().expect("how many to take") as usize;
            let events = client.watch_events(timed(parsed(request), timeout)).await?;
            Ok(events.take(take).map_ok(|event| printed(&event)).try_collect::<Vec<_>>().await?.into())
        }
        other => panic!("there is no call {other}"),
    }
}

fn timed<T>(message: T, timeout: Option<u64>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(timeout) = timeout {
        request.set_timeout(Duration::from_millis(timeout));
    }
    request
}

fn parsed<T: Message + Name + Default>(json: &Value) -> T {
    let descriptor = CONTRACT.get_message_by_name(&T::full_name()).expect("a message of the contract");
    let message = DynamicMessage::deserialize(descriptor, json).expect("the JSON form of a message");
    message.transcode_to().expect("a message of the same type")
}

fn printed<T: Message + Name>(message: &T) -> Value {
    let descriptor = CONTRACT.get_message_by_name(&T::full_name()).expect("a message of the contract");
    let message = DynamicMessage::decode(descriptor, &*message.encode_to_vec()).expect("a message of the same type");
    let options = SerializeOptions::new().skip_default_fields(false);
    message.serialize_with_options(serde_json::value::Serializer, &options).expect("a message that JSON can tell")
}

fn judge(step: &Value, outcome: Result<Value, Error>) -> Result<(), Failed> {
    let wanted = &step["error"];
    match outcome {
        Ok(answer) if wanted.is_null() => {
            let expected = step.get("answer").unwrap_or(&step["answers"]);
            ensure(holds(expected, &answer), || format!("expected {expected:#}\nbut got {answer:#}"))
        }
        Ok(answer) => Err(format!("expected the error {wanted:#}\nbut got {answer:#}").into()),
        Err(error) => ensure(is_meant(wanted, &error), || format!("expected {wanted:#}\nbut got {error:#?}")),
    }
}

/// Whether an answer holds what is wanted.
fn holds(wanted: &Value, given: &Value) -> bool {
    match (wanted, given) {
        (Value::String(any), _) if any == "$any" => !given.is_null(),
        (Value::Object(wanted), Value::Object(given)) => {
            wanted.iter().all(|(name, value)| given.get(name).is_some_and(|found| holds(value, found)))
        }
        (Value::Array(wanted), Value::Array(given)) => {
            wanted.len() == given.len() && wanted.iter().zip(given).all(|(wanted, given)| holds(wanted, given))
        }
        (Value::Number(wanted), Value::Number(given)) => wanted.as_f64() == given.as_f64(),
        _ => wanted == given,
    }
}

/// Whether an error says what is wanted of it.
fn is_meant(wanted: &Value, error: &Error) -> bool {
    let reason = error.reason.as_str_name().trim_start_matches("ERROR_REASON_");
    let fields: BTreeSet<_> = error.violations.iter().map(|violation| violation.field.as_str()).collect();
    let blocks: Vec<_> = error.blocks.iter().map(|block| block.guardrail_id.as_str()).collect();
    let delay = error.retry_delay.map(|delay| delay.as_millis());
    let bounds = list(&wanted["retryDelayMs"]);
    wanted["reason"] == reason
        && error.message.contains(wanted["message"].as_str().unwrap_or_default())
        && fields == list(&wanted["violations"]).iter().map(text).collect()
        && blocks == list(&wanted["blocks"]).iter().map(text).collect::<Vec<_>>()
        && error.blocks.iter().all(|block| !block.name.is_empty() && !block.message.is_empty())
        && wanted["metadata"].as_object().is_none_or(|it| {
            it.iter().all(|(name, value)| error.metadata.get(name).is_some_and(|found| value == found))
        })
        && wanted["requestId"].as_bool().is_none_or(|it| it == error.request_id().is_some_and(|id| !id.is_empty()))
        && (bounds.is_empty() || delay.is_some_and(|it| (number(&bounds[0])..=number(&bounds[1])).contains(&it)))
}

fn ensure(condition: bool, message: impl FnOnce() -> String) -> Result<(), Failed> {
    if condition { Ok(()) } else { Err(message().into()) }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn number(value: &Value) -> u128 {
    value.as_u64().expect("a whole number").into()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
