//! The webhook function.

use driftless_aws::{Account, QueueUrls, Sqs};
use driftless_telemetry::env;
use jiff::Timestamp;
use lambda_runtime::{Error, LambdaEvent, service_fn};
use webhook::{KeySecret, Refusals};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    driftless_telemetry::init("webhook");
    let urls = QueueUrls { hints: Some(env::required("HINTS_QUEUE_URL")?), ..QueueUrls::default() };
    let aws = driftless_aws::config().await;
    let secret = KeySecret::open(Account::new(&aws), env::required("WEBHOOK_KEYS_SECRET")?, now()).await?;
    let queues = Sqs::new(&aws, urls);
    let refusals = Refusals::default();
    let (secret, queues, refusals) = (&secret, &queues, &refusals);
    lambda_runtime::run(service_fn(async |event: LambdaEvent<_>| {
        let now = now();
        let answer = async |keys: &_| webhook::answer(keys, refusals, queues, event.payload, now).await;
        Ok::<_, Error>(secret.with(now, answer).await)
    }))
    .await
}

#[expect(clippy::disallowed_methods, reason = "the clock is read here and handed down")]
fn now() -> Timestamp {
    Timestamp::now()
}
