//! A Lambda function that does nothing: what the others are measured against.

use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use serde_json::Value;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    run(service_fn(async |event: LambdaEvent<Value>| -> Result<Value, Error> { Ok(event.payload) })).await
}
