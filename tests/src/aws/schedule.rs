//! The schedule: an event at a fixed rate, delivered asynchronously.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, interval_at, sleep},
};

use super::{lambda::Lambda, now, random_hex, site::Site, template::Schedule};

/// Lambda's own retries of an asynchronous event that failed.
const RETRIES: [Duration; 2] = [Duration::from_mins(1), Duration::from_mins(2)];

/// The schedules of the template, by the logical id of their function.
pub struct Schedules {
    site: Arc<Site>,
    lambda: Arc<Lambda>,
    paused: watch::Sender<bool>,
    by_function: BTreeMap<String, Vec<Schedule>>,
}

impl Schedules {
    /// They tick from now on; the first tick comes after one period.
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

    /// Stops the ticks, or lets them go on.
    pub fn pause(&self, paused: bool) {
        self.paused.send_replace(paused);
    }

    /// Ticks now, paused or not.
    pub fn trigger(&self, function: &str) -> Result<()> {
        let schedules = self.by_function.get(function).with_context(|| format!("no schedule ticks for {function}"))?;
        for schedule in schedules {
            self.send(function, schedule);
        }
        Ok(())
    }

    /// An asynchronous invocation: nobody waits for it, and Lambda tries again.
    fn send(&self, function: &str, schedule: &Schedule) {
        let template = &self.site.template;
        let event = event(&template.account, &template.region, &schedule.rule);
        let (lambda, function) = (Arc::clone(&self.lambda), function.to_owned());
        self.site.tasks.spawn(async move {
            for pause in RETRIES {
                if lambda.invoke(&function, &event).await.is_ok() {
                    return;
                }
                sleep(pause).await;
            }
            // The last failure is an alarm like those before it.
            let _ = lambda.invoke(&function, &event).await;
        });
    }
}

fn event(account: &str, region: &str, rule: &str) -> Value {
    json!({
        "version": "0", "id": random_hex(16).unwrap_or_default(), "detail-type": "Scheduled Event", "source": "aws.events", "account": account,
        "time": now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(), "region": region,
        "resources": [rule], "detail": {},
    })
}
