//! The guarantees of [`Cluster`].

mod fixture;
mod lists;
mod reads;
mod surroundings;
mod writes;

pub use fixture::Fixture;

use super::Report;

/// Checks every guarantee of the port.
pub async fn check<F: Fixture>(fixture: &F) -> Report {
    let mut report = reads::check(fixture).await;
    report.extend(writes::check(fixture).await);
    report.extend(lists::check(fixture).await);
    report.extend(surroundings::check(fixture).await);
    report
}
