//! Announces an intent and prints the verdict.
//!
//! CSTP_TARGET is the server's address, CSTP_TOKEN the token, and CSTP_CA_FILE a file of certificates to trust instead
//! of those of the system.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use cstp::prost_types::Struct;
use cstp::v1::{AnnounceIntentRequest, AnnounceIntentResponse, Stakes};
use cstp::{Client, Options};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match announce().await {
        Ok(answer) => {
            print(&answer);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn announce() -> Result<AnnounceIntentResponse, Box<dyn Error>> {
    let target = env::var("CSTP_TARGET")
        .map_err(|_| "Set CSTP_TARGET to the address of a server, for instance grpc://localhost:50051")?;
    let root_certificates = env::var_os("CSTP_CA_FILE").map(std::fs::read).transpose()?;
    let token = env::var("CSTP_TOKEN").ok();
    let client = Client::new(&target, Options { token, root_certificates, ..Options::default() })?;
    let intent = AnnounceIntentRequest {
        intent: "Deploy the auth service to production".into(),
        category: Some("deployment".into()),
        stakes: Stakes::High.into(),
        confidence: Some(0.9),
        metadata: Some(Struct {
            fields: [("affectsProduction".into(), true.into()), ("codeReviewCompleted".into(), false.into())].into(),
        }),
        ..Default::default()
    };
    Ok(client.announce_intent(intent).await?)
}

fn print(answer: &AnnounceIntentResponse) {
    println!("Announced to {} as {}", answer.responding_agent, answer.correlation_id);
    match &answer.guardrail_status {
        Some(status) => {
            println!("{}", if status.allowed { "Allowed" } else { "Not allowed" });
            for violation in status.violations.iter().chain(&status.warnings) {
                println!("  {}: {}", violation.guardrail_id, violation.message);
                if let Some(suggestion) = &violation.suggestion {
                    println!("    {suggestion}");
                }
            }
        }
        None => println!("Not judged: the server does not answer with a verdict"),
    }
    for decision in &answer.similar_decisions {
        println!("Similar: {} (score {:.2})", decision.title, decision.score);
    }
}
