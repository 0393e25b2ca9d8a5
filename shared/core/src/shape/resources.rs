//! The resource requests of a Workspace's containers, in the form of Fargate.

use super::{
    fields::meaningless,
    task::{DefaultSize, size},
};
use crate::{Quantity, ResourceRequirements};

/// The disk space of every task in GiB, and the maximum.
const DISK_GIB: u64 = 20;
const MAX_DISK_GIB: u64 = 200;

/// The requests of the containers.
#[derive(Default)]
pub(super) struct Asked {
    cpu: Amount,
    memory: Amount,
    disk: Amount,
}

/// An amount of one resource, in thousandths.
#[derive(Default)]
struct Amount {
    /// The largest of all requests and limits.
    most: Option<u64>,
    /// The container `pulumi` has a limit. A request alone states the minimum of a pod, and a pod
    /// may use all of its node.
    is_limited: bool,
}

impl Amount {
    /// The amount to provide; `None` if the default is enough.
    fn beyond(&self, default: u64) -> Option<u64> {
        self.most.filter(|most| self.is_limited || *most > default)
    }
}

impl Asked {
    pub(super) fn add(&mut self, at: &str, resources: &ResourceRequirements, is_main: bool) -> Result<(), String> {
        if !resources.claims.is_empty() {
            return Err(format!("{}; remove it", meaningless(at, "claims")));
        }
        for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            for (name, Quantity(amount)) in amounts {
                let asked = match name.as_str() {
                    "cpu" => &mut self.cpu,
                    "memory" => &mut self.memory,
                    "ephemeral-storage" => &mut self.disk,
                    _ => return Err(format!("{}; remove it", meaningless(at, &format!("{list}[{name}]")))),
                };
                let words = || format!("{at}.{list}[{name}] is {amount:?}; write an amount such as 500m or 2Gi");
                asked.most = asked.most.max(Some(milli(amount).ok_or_else(words)?));
                asked.is_limited |= is_main && list == "limits";
            }
        }
        Ok(())
    }

    pub(super) fn size(&self, at: &str, default: DefaultSize) -> Result<(u32, u32), String> {
        let cpu = self.cpu.beyond(u64::from(default.cpu) * 1000 / 1024);
        let bytes = self.memory.beyond((u64::from(default.memory_mib) << 20) * 1000).map(|milli| milli.div_ceil(1000));
        size(cpu, bytes, default).ok_or_else(|| {
            let (cpu, gib) = (cpu.unwrap_or_default().div_ceil(1000), bytes.unwrap_or_default().div_ceil(1 << 30));
            format!(
                "{at}.resources requests {cpu} CPUs and {gib} GiB of memory, the maximum of Fargate is 16 CPUs and 120 GiB; \
                 request less"
            )
        })
    }

    pub(super) fn disk(&self, at: &str) -> Result<Option<u32>, String> {
        let gib = self.disk.most.unwrap_or_default().div_ceil(1000).div_ceil(1 << 30);
        if gib > MAX_DISK_GIB {
            let limit = format!("the maximum of Fargate is {MAX_DISK_GIB}; request less");
            return Err(format!("{at}.resources requests {gib} GiB of ephemeral-storage, {limit}"));
        }
        Ok(u32::try_from(gib).ok().filter(|_| gib > DISK_GIB))
    }
}

/// A Kubernetes quantity in thousandths, rounded up, and at most what a `u64` holds; `None` if it
/// is invalid or negative.
fn milli(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (number, suffix) = text.split_at(text.find(|char: char| !char.is_ascii_digit() && char != '.').unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (bits, power): (u32, i32) = match suffix {
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        exponent => (0, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    let power = power.saturating_add(3).saturating_sub(i32::try_from(fraction.len()).ok()?);
    let scale = 10_u128.saturating_pow(power.unsigned_abs());
    let amount = digits.saturating_mul(1 << bits);
    let amount = if power < 0 { amount.div_ceil(scale) } else { amount.saturating_mul(scale) };
    Some(u64::try_from(amount).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_the_kubernetes_format() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1", Some(1000)),
            ("500m", Some(500)),
            ("0.5", Some(500)),
            (".5", Some(500)),
            ("+1.", Some(1000)),
            ("1.0001", Some(1001)),
            ("100n", Some(1)),
            ("1500u", Some(2)),
            ("1k", Some(1_000_000)),
            ("1Ki", Some(1_024_000)),
            ("1.5Gi", Some(1_610_612_736_000)),
            ("2e3", Some(2_000_000)),
            ("2E-3", Some(2)),
            ("1e+1", Some(10_000)),
            ("8Ei", Some(u64::MAX)),
            ("1e2147483647", Some(u64::MAX)),
            ("1e-2147483648", Some(1)),
            ("", None),
            (".", None),
            ("-1", None),
            ("1.2.3", None),
            ("1 Gi", None),
            ("1KB", None),
            ("1e", None),
            ("true", None),
        ] {
            assert_eq!(milli(text), expected, "{text:?}");
        }
    }
}
