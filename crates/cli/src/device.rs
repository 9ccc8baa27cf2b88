//! Where tensors are.

use std::sync::OnceLock;

use anyhow::{Result, anyhow};
use burn::tensor::Device;
use clap::Args;
use omma_kernels::devices::{DeviceError, DeviceName};

/// The device of this process; processes that it starts have the same.
#[derive(Args)]
pub(crate) struct DeviceArguments {
    /// Where to compute, as `omma devices` lists it: cpu, cuda, cuda:1, wgpu, …
    #[arg(long, global = true, value_name = "DEVICE", env = DEVICE, hide_env = true,
          default_value = "cpu")]
    device: DeviceName,
}

const DEVICE: &str = "OMMA_DEVICE";
static CHOSEN: OnceLock<DeviceName> = OnceLock::new();

impl DeviceArguments {
    /// Remembers it for processes that this one starts.
    pub(crate) fn put(&self) {
        CHOSEN.get_or_init(|| self.device);
    }

    /// Fails where this build or this machine has no such device.
    pub(crate) fn open(&self) -> Result<Device> {
        self.device.open().map_err(explained)
    }

    /// Fails where it is not there, before processes are started that would all fail by that.
    pub(crate) fn check(&self) -> Result<()> {
        self.device.find().map(drop).map_err(explained)
    }
}

fn explained(error: DeviceError) -> anyhow::Error {
    match error {
        DeviceError::NotBuilt(_) => anyhow!("{error}"),
        error => anyhow!("{error}; `omma devices` lists what there is"),
    }
}

/// The device as another process of this program takes it.
pub(crate) fn environment() -> Option<(&'static str, String)> {
    CHOSEN.get().map(|device| (DEVICE, device.to_string()))
}
