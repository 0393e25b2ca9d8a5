//! The suites with [`World`], and with ports that have a flaw.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{
    flawed::{Flaw, Flawed},
    *,
};
use crate::{Faults, Message, World};

/// A port that is a world, with a flaw or without.
pub(super) trait OfWorld: Sized {
    fn world(&self) -> &World;
    /// The same with another world.
    fn over(&self, world: World) -> Self;
}

impl OfWorld for World {
    fn world(&self) -> &World {
        self
    }

    fn over(&self, world: World) -> Self {
        world
    }
}

impl<P: OfWorld + driftless_aws::Objects> objects::Fixture for P {
    type Port = P;

    fn port(&self) -> &P {
        self
    }

    fn now(&self) -> Timestamp {
        self.world().now()
    }

    async fn archive(&self, key: &str) -> Result<()> {
        self.world().archive(key);
        Ok(())
    }
}

impl<P: OfWorld + driftless_aws::Queues> queues::Fixture for P {
    type Port = P;
    type Bucket = World;

    fn port(&self) -> &P {
        self
    }

    fn bucket(&self) -> &World {
        self.world()
    }

    async fn receive(&self) -> Result<Vec<Message>> {
        Ok(std::iter::from_fn(|| self.world().receive()).collect())
    }
}

impl<P: OfWorld + driftless_aws::Tasks> tasks::Fixture for P {
    type Port = P;

    fn port(&self) -> &P {
        self
    }

    fn now(&self) -> Timestamp {
        self.world().now()
    }

    async fn set_capacity(&self, is_there: bool) -> Result<()> {
        self.world().set_faults(Faults { full: if is_there { 0 } else { 1000 }, ..Faults::NONE });
        Ok(())
    }

    async fn reclaim(&self, arn: &str) -> Result<()> {
        self.world().reclaim_task(arn);
        Ok(())
    }

    /// A world's tasks end when they are stopped.
    async fn exit(&self, _arn: &str) -> Result<()> {
        Ok(())
    }

    async fn stopped(&self, arn: &str) -> Result<()> {
        self.world().end_task(arn, "");
        Ok(())
    }

    async fn forget(&self) -> Result<()> {
        self.world().advance(SignedDuration::from_mins(61));
        Ok(())
    }

    async fn is_told(&self, arn: &str) -> Result<bool> {
        let told = Message::Run(driftless_contract::RunMessage::Task { task: arn.into() });
        Ok(std::iter::from_fn(|| self.world().receive()).any(|message| message == told))
    }
}

impl<P: OfWorld + driftless_kubernetes::Cluster> cluster::Fixture for P {
    type Port = P;

    fn port(&self) -> &P {
        self
    }

    async fn denied(&self) -> Result<P> {
        let world = World::new(0, Faults::NONE);
        world.forbid("Secret");
        Ok(self.over(world))
    }

    fn now(&self) -> Timestamp {
        self.world().now()
    }

    async fn namespace(&self, name: &str, watch: Option<&str>) -> Result<()> {
        if let Some(watch) = watch {
            self.world().label_namespace(name, watch);
        }
        Ok(())
    }

    async fn terminate(&self, namespace: &str) -> Result<()> {
        self.world().terminate_namespace(namespace);
        Ok(())
    }

    async fn events(&self, namespace: &str) -> Result<Vec<String>> {
        let mut events = self.world().events();
        events.retain(|event| event.contains(&format!(" {namespace}/")));
        Ok(events)
    }

    fn is_for(&self, token: &str, audience: &str) -> bool {
        token.ends_with(&format!(" for {audience}"))
    }
}

/// A world at a time with a fraction of a second.
fn world() -> World {
    let world = World::new(0, Faults::NONE);
    world.advance(SignedDuration::from_millis(1500));
    world
}

#[test]
fn world_gives_every_guarantee_of_the_bucket() {
    let world = world();
    world.drive(objects::check(&world)).unwrap().into_result().unwrap();
}

#[test]
fn world_gives_every_guarantee_of_the_queues() {
    let world = world();
    world.drive(queues::check(&world)).unwrap().into_result().unwrap();
}

#[test]
fn world_gives_every_guarantee_of_ecs() {
    let world = world();
    world.drive(tasks::check(&world)).unwrap().into_result().unwrap();
}

#[test]
fn world_gives_every_guarantee_of_the_cluster() {
    let world = world();
    world.drive(cluster::check(&world)).unwrap().into_result().unwrap();
}

/// The case for the flaw detects it. Others may too.
#[test]
fn port_with_a_flaw_breaks_the_guarantee_that_it_lacks() {
    for &flaw in Flaw::ALL {
        let port = Flawed { world: world(), flaw };
        let suites = async || {
            let reports = [objects::check(&port).await, queues::check(&port).await];
            reports.into_iter().chain([tasks::check(&port).await, cluster::check(&port).await])
        };
        let reports = port.world.drive(suites()).unwrap();
        let broken: BTreeSet<_> = reports.flat_map(|report| report.broken).map(|(guarantee, _)| guarantee).collect();
        assert!(broken.contains(flaw.guarantee()), "{flaw:?}: {broken:?}");
        assert!(broken.len() < 12, "{flaw:?} breaks what it does not lack: {broken:?}");
    }
}
