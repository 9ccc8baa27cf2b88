//! Where tensors are.

use burn::tensor::Device;
use clap::{Args, ValueEnum};

/// The device of this process.
#[derive(Args)]
pub(crate) struct DeviceArguments {
    /// Where to compute
    #[arg(long, global = true, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DeviceName {
    /// All cores of this machine
    Cpu,
}

impl DeviceArguments {
    pub(crate) fn open(&self) -> Device {
        match self.device {
            DeviceName::Cpu => Device::flex(),
        }
    }
}
