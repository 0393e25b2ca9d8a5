//! The task that runs an Update: its images, size, disk and volumes.

use std::{collections::BTreeSet, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::hash;

/// The volume that all containers of a task share, at the path of PKO's pod: the source is in
/// `source` below it, and `workspace` is the project's directory.
pub const SHARE: &str = "/share";

/// The volume of a task for the tokens of its `ServiceAccount`, at the path of a pod.
pub const SECRETS: &str = "/var/run/secrets";

/// The volume of a task with the runner's binary.
pub const RUNNER_VOLUME: &str = "/driftless";

/// The installation's task size, for a Workspace that sets none. If Fargate has no such size, the
/// task gets the next larger one that holds both values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultSize {
    /// CPU units; a vCPU has 1024.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl Default for DefaultSize {
    /// Equal to the defaults of `TaskCpu` and `TaskMemory` in the template, which a test compares:
    /// a provider plugin takes 300 to 430 MB, `pulumi` 120 MB, and a language host with its
    /// packages more.
    fn default() -> Self {
        Self { cpu: 1024, memory_mib: 4096 }
    }
}

/// Fargate's sizes: CPU units, then the minimum, maximum and step of the memory in MiB.
const SIZES: [(u32, u32, u32, u32); 8] = [
    (256, 512, 512, 512),
    (256, 1024, 2048, 1024),
    (512, 1024, 4096, 1024),
    (1024, 2048, 8192, 1024),
    (2048, 4096, 16384, 1024),
    (4096, 8192, 30720, 1024),
    (8192, 16384, 61440, 4096),
    (16384, 32768, 122_880, 8192),
];

/// The processor architecture of a task, by Kubernetes' names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86, 64 bits.
    #[default]
    Amd64,
    /// Arm, 64 bits: AWS's Graviton.
    Arm64,
}

impl Architecture {
    /// The other architecture: the one to try for an image that is not built for this one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Amd64 => Self::Arm64,
            Self::Arm64 => Self::Amd64,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "amd64" => Ok(Self::Amd64),
            "arm64" => Ok(Self::Arm64),
            _ => Err(format!("{name:?} is neither amd64 nor arm64")),
        }
    }
}

/// The properties of a task that a Workspace sets. Tasks of the same shape share one task
/// definition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskShape {
    /// The image with `pulumi`; `None` for the installation's default.
    pub image: Option<String>,
    /// The architecture, for which every image of the task has to be built; `None` for the
    /// installation's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub architecture: Option<Architecture>,
    /// CPU units; a vCPU has 1024. Fargate has it together with [`TaskShape::memory_mib`].
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Disk space in GiB, 21 to 200; `None` for Fargate's 20.
    pub ephemeral_gib: Option<u32>,
    /// The volumes that `pulumi` sees beside those of every task.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// The containers that run before `pulumi`, one after the other. At most eight.
    pub init: Vec<InitContainer>,
}

impl Default for TaskShape {
    fn default() -> Self {
        let DefaultSize { cpu, memory_mib } = DefaultSize::default();
        Self { image: None, architecture: None, cpu, memory_mib, ephemeral_gib: None, mounts: Vec::new(), init: Vec::new() }
    }
}

impl TaskShape {
    /// Identifies the images of a task, which ECS pulls for one processor. `None` if the shape
    /// names none.
    #[must_use]
    pub fn images(&self, default_image: &str) -> Option<String> {
        let names_one = self.image.is_some() || self.init.iter().any(|init| init.image.is_some());
        let main = self.image.as_deref().unwrap_or(default_image);
        let init = self.init.iter().map(|init| init.image.as_deref().unwrap_or(main));
        let images: BTreeSet<_> = init.chain([main]).collect();
        names_one.then(|| hash(&images.into_iter().collect::<Vec<_>>()))
    }
}

/// A container that has to succeed before `pulumi` starts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InitContainer {
    /// Its name, unique in its shape.
    pub name: String,
    /// Its image; `None` for the shape's.
    pub image: Option<String>,
    /// Kubernetes' `command`; empty for the image's.
    pub entry_point: Vec<String>,
    /// Kubernetes' `args`.
    pub command: Vec<String>,
    /// Its environment, in order; a later entry of the same name wins.
    pub env: Vec<(String, String)>,
    /// The volumes that it sees beside the one that all containers share.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
}

/// Where a container mounts a volume of a task. The volume is empty when the task starts, and all
/// containers share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// The volume's name: up to 63 of a-z, 0-9 and `-`.
    pub volume: String,
    /// The absolute path.
    pub path: String,
}

/// The smallest Fargate size with at least this many thousandths of a CPU and bytes of memory, as
/// CPU units and MiB. A missing value is taken from `default`. `None` if it exceeds Fargate's
/// maximum: 16 vCPU and 120 GiB.
pub(super) fn size(cpu_milli: Option<u64>, memory_bytes: Option<u64>, default: DefaultSize) -> Option<(u32, u32)> {
    let cpu = cpu_milli.map_or(u64::from(default.cpu), |milli| milli.saturating_mul(1024).div_ceil(1000));
    let memory = memory_bytes.map_or(u64::from(default.memory_mib), |bytes| bytes.div_ceil(1 << 20));
    SIZES.into_iter().find(|(units, _, most, _)| u64::from(*units) >= cpu && u64::from(*most) >= memory).and_then(
        |(units, least, _, step)| {
            let memory = u32::try_from(memory).ok()?.max(least);
            Some((units, memory.next_multiple_of(step)))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn images_are_those_of_a_task_in_any_order() {
        let init = |image: Option<&str>| InitContainer { image: image.map(str::to_owned), ..InitContainer::default() };
        let shape = |image: Option<&str>, init: Vec<InitContainer>| {
            TaskShape { image: image.map(str::to_owned), init, ..TaskShape::default() }.images("default")
        };
        assert_eq!(shape(None, vec![init(None)]), None);
        let both = shape(Some("a"), vec![init(Some("b")), init(None)]);
        assert_eq!(both, shape(Some("b"), vec![init(Some("a"))]));
        assert!(both.is_some() && both != shape(Some("a"), vec![]));
        // The default image counts as a different image.
        assert_eq!(shape(None, vec![init(Some("b"))]), shape(Some("default"), vec![init(Some("b"))]));
        assert_ne!(shape(None, vec![init(Some("b"))]), shape(Some("b"), vec![]));
    }

    #[test]
    fn smallest_fargate_size_that_fits_the_request() {
        for (cpu, memory, expected) in [
            (None, None, Some((1024, 4096))),
            (Some(100), Some(64 << 20), Some((256, 512))),
            (Some(250), Some((512 << 20) + 1), Some((256, 1024))),
            (Some(250), Some(GIB + 1), Some((256, 2048))),
            (Some(250), Some(2 * GIB + 1), Some((512, 3072))),
            (Some(100), None, Some((512, 4096))),
            (Some(251), None, Some((512, 4096))),
            (Some(500), None, Some((512, 4096))),
            (None, Some(64 << 20), Some((1024, 2048))),
            (None, Some(8 * GIB), Some((1024, 8192))),
            (Some(2000), None, Some((2048, 4096))),
            (Some(4000), Some(30 * GIB), Some((4096, 30720))),
            (Some(4000), Some(30 * GIB + 1), Some((8192, 32768))),
            (Some(8000), Some(17 * GIB), Some((8192, 20480))),
            (Some(16000), Some(33 * GIB), Some((16384, 40960))),
            (Some(16000), Some(120 * GIB), Some((16384, 122_880))),
            (Some(16001), None, None),
            (None, Some(120 * GIB + 1), None),
            (Some(u64::MAX), Some(u64::MAX), None),
        ] {
            assert_eq!(size(cpu, memory, DefaultSize::default()), expected, "{cpu:?} {memory:?}");
        }
    }

    #[test]
    fn default_size_applies_without_a_request() {
        let default = |cpu, memory_mib| DefaultSize { cpu, memory_mib };
        for (default, cpu, memory, expected) in [
            (default(256, 512), None, None, (256, 512)),
            (default(512, 1024), None, None, (512, 1024)),
            (default(2048, 2048), None, None, (2048, 4096)),
            (default(256, 8192), None, None, (1024, 8192)),
            (default(1024, 2500), None, None, (1024, 3072)),
            (default(16384, 122_880), None, None, (16384, 122_880)),
            (default(256, 512), Some(1000), None, (1024, 2048)),
            (default(256, 512), None, Some(GIB), (256, 1024)),
            (default(2048, 16384), Some(250), Some(512 << 20), (256, 512)),
        ] {
            assert_eq!(size(cpu, memory, default), Some(expected), "{default:?} {cpu:?} {memory:?}");
        }
    }
}
