//! The webhook function.

use driftless_aws::{QueueUrls, Sqs};
use driftless_telemetry::env;
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use webhook::Keys;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("webhook");
    let keys: Keys = env::parsed("WEBHOOK_KEYS")?;
    let urls = QueueUrls { hints: Some(env::required("HINTS_QUEUE_URL")?), ..QueueUrls::default() };
    let queues = Sqs::new(&driftless_aws::config().await, urls);
    let (keys, queues) = (&keys, &queues);
    lambda_runtime::run(service_fn(async |event: LambdaEvent<_>| {
        Ok::<_, Error>(webhook::answer(keys, queues, event.payload, now()).await)
    }))
    .await
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
