#![doc = include_str!("../README.md")]
// Its blocks name the files that they show, which rustdoc does not know.
#![allow(rustdoc::invalid_codeblock_attributes)]

mod client;
mod endpoint;
mod error;
mod error_reasons;
mod identifiers;
mod service_config;
mod timeout;

pub use client::{Client, Connection, Options};
pub use contract::cstp::v1;
pub use contract::{intent_layer, liaison};
pub use error::{Block, Error, FieldViolation, Result};
pub use {prost_types, tonic};

/// The messages and stubs of the contract, in modules named after its packages.
#[allow(clippy::all, rustdoc::all)]
mod contract {
    pub mod cstp {
        pub mod v1 {
            include!("generated/cstp/v1/cstp.v1.rs");
        }
    }
    pub mod intent_layer {
        pub mod v1 {
            include!("generated/intent_layer/v1/intent_layer.v1.rs");
        }
    }
    pub mod liaison {
        pub mod v1 {
            include!("generated/liaison/v1/liaison.v1.rs");
        }
    }
}
