//! The schedule: an event at a fixed rate, delivered asynchronously.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep},
};

use super::{
    lambda::Lambda,
    machine::{now, random_hex},
    site::Site,
    template::Schedule,
};

/// The pauses before Lambda's retries of an asynchronous invocation. The template says how many
/// retries there are.
const RETRIES: [Duration; 2] = [Duration::from_mins(1), Duration::from_mins(2)];

/// The schedules of the template, by the logical id of their function.
pub struct Schedules {
    site: Arc<Site>,
    lambda: Arc<Lambda>,
    paused: watch::Sender<bool>,
    by_function: BTreeMap<String, Vec<Schedule>>,
}

impl Schedules {
    /// Starts the schedules; the first tick comes after one period.
    pub fn start(site: &Arc<Site>, lambda: &Arc<Lambda>) -> Arc<Self> {
        let by_function = site.template.functions.iter().map(|(id, function)| (id.clone(), function.schedules.clone()));
        let by_function = by_function.filter(|(_, schedules)| !schedules.is_empty()).collect();
        let schedules =
            Arc::new(Self { site: Arc::clone(site), lambda: Arc::clone(lambda), paused: watch::Sender::new(false), by_function });
        for (function, schedule) in
            schedules.by_function.iter().flat_map(|(id, all)| all.iter().map(move |schedule| (id.clone(), schedule.clone())))
        {
            let schedules = Arc::clone(&schedules);
            site.tasks.spawn(async move {
                let mut ticks = interval_at(Instant::now() + schedule.every, schedule.every);
                loop {
                    ticks.tick().await;
                    if !*schedules.paused.borrow() {
                        schedules.send(&function, &schedule);
                    }
                }
            });
        }
        schedules
    }

    /// Pauses or resumes the ticks.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Triggers a tick, paused or not.
    pub fn trigger(&self, function: &str) -> Result<()> {
        let schedules = self.by_function.get(function).with_context(|| format!("no schedule ticks for {function}"))?;
        for schedule in schedules {
            self.send(function, schedule);
        }
        Ok(())
    }

    /// Invokes asynchronously. Lambda retries a failure as often as the template allows.
    fn send(&self, function: &str, schedule: &Schedule) {
        let template = &self.site.template;
        let event = event(&template.account, &template.region, &schedule.rule);
        let target = &template.functions[function];
        let (retries, event_age) = (target.retries, target.event_age);
        let (lambda, function) = (Arc::clone(&self.lambda), function.to_owned());
        self.site.tasks.spawn(async move {
            let sent = Instant::now();
            let mut failed = 0;
            // Each failure has raised an alarm already.
            while lambda.invoke(&function, &event).await.is_err() {
                failed += 1;
                let Some(pause) = pause(failed, sent.elapsed(), retries, event_age) else { return };
                sleep(pause).await;
            }
        });
    }
}

/// The pause before the next invocation, after this many failures and with an event of this age;
/// `None` if Lambda discards the event.
fn pause(failed: usize, age: Duration, retries: usize, event_age: Duration) -> Option<Duration> {
    let pause = RETRIES.iter().take(retries).nth(failed.checked_sub(1)?);
    pause.copied().filter(|pause| age + *pause <= event_age)
}

fn event(account: &str, region: &str, rule: &str) -> Value {
    json!({
        "version": "0", "id": random_hex(16).unwrap_or_default(), "detail-type": "Scheduled Event", "source": "aws.events", "account": account,
        "time": now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "region": region,
        "resources": [rule], "detail": {},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_invocation_is_retried_as_the_template_says() {
        let after = |failed, age, retries, event_age| {
            pause(failed, Duration::from_secs(age), retries, Duration::from_secs(event_age)).map(|pause| pause.as_secs())
        };
        for (failed, age, retries, event_age, expected) in [
            (1, 3, 0, 3600, None),
            (1, 3, 1, 3600, Some(60)),
            (2, 3, 1, 3600, None),
            (2, 70, 2, 3600, Some(120)),
            (3, 70, 2, 3600, None),
            (1, 3, 2, 60, None),
            (2, 70, 2, 190, Some(120)),
            (2, 71, 2, 190, None),
        ] {
            assert_eq!(after(failed, age, retries, event_age), expected, "{failed} failed, {age} s old, {retries}, {event_age}");
        }
    }
}
