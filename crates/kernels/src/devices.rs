//! Which devices there are, in this build and on this machine. Nothing here chooses one.

use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    str::FromStr,
};

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burn::tensor::DeviceType;
use burn::tensor::{Device, Tensor};

/// A way to reach devices, as its users call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceFamily {
    /// All cores, by the operations of this crate.
    Cpu,
    /// NVIDIA's.
    Cuda,
    /// Whatever graphics interface the machine has.
    Wgpu,
    /// That of Apple.
    Metal,
    /// That of Khronos.
    Vulkan,
}

impl DeviceFamily {
    /// All that can be built.
    pub const ALL: [Self; 5] = [Self::Cpu, Self::Cuda, Self::Wgpu, Self::Metal, Self::Vulkan];

    /// Its name, which is that of its Cargo feature too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
            Self::Metal => "metal",
            Self::Vulkan => "vulkan",
        }
    }

    /// Whether this build has it.
    pub fn is_built(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Metal => cfg!(feature = "metal"),
            Self::Vulkan => cfg!(feature = "vulkan"),
        }
    }

    /// The devices of this machine that it reaches; those that are no hardware come last.
    pub fn devices(self) -> Vec<Device> {
        let found = match self {
            Self::Cpu => return vec![Device::flex()],
            #[cfg(feature = "cuda")]
            Self::Cuda => listed(DeviceType::Cuda),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => listed(DeviceType::Wgpu),
            #[cfg(feature = "metal")]
            Self::Metal => listed(DeviceType::Metal),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => listed(DeviceType::Vulkan),
            #[allow(unreachable_patterns, reason = "a build may have all of them")]
            _ => Vec::new(),
        };
        if found.len() < 2 {
            return found;
        }
        let (hardware, software): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|device| !about(device).is_some_and(|about| about.software));
        hardware.into_iter().chain(software).collect()
    }
}

/// What there is to know of a device that works.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AboutDevice {
    /// What it calls itself.
    pub name: String,
    /// Whether it is a program that behaves like a device.
    pub software: bool,
}

/// Which device, as a user says it: `wgpu`, or `wgpu:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceName {
    /// How it is reached.
    pub family: DeviceFamily,
    /// Which of these devices.
    pub index: usize,
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.family {
            DeviceFamily::Cpu => f.write_str("cpu"),
            family => write!(f, "{}:{}", family.name(), self.index),
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (family, index) = text.split_once(':').unwrap_or((text, "0"));
        let unknown = || {
            format!(
                "no device is called \"{text}\": cpu, cuda, wgpu, metal, vulkan, or one with a number, as in cuda:1"
            )
        };
        let family = DeviceFamily::ALL.into_iter().find(|known| known.name() == family);
        let name = Self {
            family: family.ok_or_else(unknown)?,
            index: index.parse().map_err(|_| unknown())?,
        };
        match name {
            Self { family: DeviceFamily::Cpu, index: 1.. } => Err("there is one cpu".to_owned()),
            name => Ok(name),
        }
    }
}

/// Why a device cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceError {
    /// This build has no such devices.
    NotBuilt(DeviceFamily),
    /// This machine has no such device, only so many of its family.
    NotThere(DeviceName, usize),
    /// It is there and does not compute, for a reason of its own.
    Broken(DeviceName, String),
}

impl std::error::Error for DeviceError {}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt(family) => {
                let name = family.name();
                write!(
                    f,
                    "this build has no {name}: build omma with --features {name}, or use --device cpu"
                )
            }
            Self::NotThere(DeviceName { family, .. }, 0) => {
                let name = family.name();
                write!(
                    f,
                    "this machine has no device that {name} reaches: is its driver installed?"
                )
            }
            Self::NotThere(name, count) => {
                write!(
                    f,
                    "there is no {name}: {} reaches {count} here, from 0 on",
                    name.family.name()
                )
            }
            Self::Broken(name, why) => write!(f, "{name} does not compute: {why}"),
        }
    }
}

impl DeviceName {
    /// The device, if this build and this machine have it; it has not computed anything yet.
    pub fn find(self) -> Result<Device, DeviceError> {
        if !self.family.is_built() {
            return Err(DeviceError::NotBuilt(self.family));
        }
        let found = quietly(|| self.family.devices());
        let mut found = found.map_err(|why| DeviceError::Broken(self, why))?;
        if self.index >= found.len() {
            return Err(DeviceError::NotThere(self, found.len()));
        }
        Ok(found.swap_remove(self.index))
    }

    /// The device, after a first computation on it.
    pub fn open(self) -> Result<Device, DeviceError> {
        let broken = |why| DeviceError::Broken(self, why);
        let device = self.find()?;
        if self.family == DeviceFamily::Cpu {
            return Ok(device);
        }
        let sum = quietly(|| Tensor::<1>::ones([3], &device).sum().into_scalar::<f32>());
        match sum.map_err(broken)? {
            3.0 => Ok(device),
            other => Err(broken(format!("it says that 1 + 1 + 1 is {other}"))),
        }
    }
}

/// What an open device is called, as it can be said again, and what it calls itself.
pub fn describe(device: &Device) -> String {
    let names = DeviceFamily::ALL.into_iter().flat_map(|family| {
        let devices = family.devices().into_iter().enumerate();
        devices.map(move |(index, device)| (DeviceName { family, index }, device))
    });
    let name = names.into_iter().find(|(_, other)| other == device).map(|(name, _)| name);
    let name = name.map_or("a device".to_owned(), |name| name.to_string());
    match about(device) {
        Some(about) => format!("{name} ({})", about.name),
        None => name,
    }
}

/// What a device says of itself; nothing where it is the CPU, or cannot be opened.
pub fn about(device: &Device) -> Option<AboutDevice> {
    if *device == Device::flex() {
        return None;
    }
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    {
        let identity = quietly(|| device.identity()).ok()??;
        Some(AboutDevice { name: identity.name, software: identity.physical.is_none() })
    }
    #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
    None
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn listed(of: DeviceType) -> Vec<Device> {
    Device::enumerate(of).into_vec()
}

/// Drivers that are missing or broken are panics in the libraries below; here they are messages.
fn quietly<T>(ask: impl FnOnce() -> T) -> Result<T, String> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let answer = panic::catch_unwind(AssertUnwindSafe(ask));
    panic::set_hook(usual);
    answer.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("its driver gave up").lines().next().unwrap_or_default().to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["cpu", "cuda:0", "wgpu:3", "metal:0", "vulkan:1"] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        let first = DeviceName { family: DeviceFamily::Wgpu, index: 0 };
        assert_eq!("wgpu".parse(), Ok(first));
        for unknown in ["gpu", "wgpu:", "wgpu:-1", "wgpu:x", ":1", "cuda:1:2", ""] {
            let error = unknown.parse::<DeviceName>().unwrap_err();
            assert!(error.contains(&format!("\"{unknown}\"")), "{error}");
        }
        assert!("cpu:1".parse::<DeviceName>().is_err());
    }

    #[test]
    fn the_cpu_is_always_there_and_others_say_what_is_missing() {
        let cpu = "cpu".parse::<DeviceName>().unwrap().open().unwrap();
        assert_eq!(cpu, Device::flex());
        assert_eq!(describe(&cpu.autodiff()), "cpu");
        for family in DeviceFamily::ALL.into_iter().filter(|family| !family.is_built()) {
            assert!(family.devices().is_empty());
            let error = DeviceName { family, index: 0 }.open().unwrap_err();
            assert_eq!(error, DeviceError::NotBuilt(family));
            assert!(error.to_string().contains(&format!("--features {}", family.name())));
        }
    }

    #[test]
    fn a_device_that_is_not_there_is_no_panic() {
        for family in DeviceFamily::ALL.into_iter().filter(|family| family.is_built()) {
            let count = family.devices().len();
            let name = DeviceName { family, index: count + 7 };
            assert_eq!(name.open().unwrap_err(), DeviceError::NotThere(name, count));
        }
        assert_eq!(quietly(|| panic!("no\nmore")), Err::<(), _>("no".to_owned()));
    }
}
