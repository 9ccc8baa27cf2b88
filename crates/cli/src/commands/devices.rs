//! `omma devices`

use anyhow::Result;
use clap::Args;
use omma_kernels::{
    Precision,
    devices::{AboutDevice, DeviceFamily, DeviceName, about},
};
use serde::Serialize;

use crate::table::{note, say, say_json, table};

/// List the devices that this build can compute on, and that this machine has.
///
/// Every command takes them as --device. A software device is a program that
/// behaves like a GPU: good for trying things out, slower than the cpu.
///
/// Examples:
///   omma devices
///   omma train vmoe --device wgpu:0
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Devices {
    /// Print a list of families and their devices instead of a table
    #[arg(long)]
    json: bool,
}

/// A family of devices, here.
#[derive(Serialize)]
struct Listed {
    family: &'static str,
    /// Whether this build has it; the feature to build with otherwise is the family's name.
    built: bool,
    devices: Vec<ListedDevice>,
}

#[derive(Serialize)]
struct ListedDevice {
    /// For --device.
    device: String,
    name: String,
    software: bool,
    /// What it computes in.
    precisions: Vec<Precision>,
    /// Why it does not compute; nothing where it does.
    fault: Option<String>,
}

impl Devices {
    pub(crate) fn run(self) -> Result<()> {
        let all: Vec<Listed> = DeviceFamily::ALL.into_iter().map(listed).collect();
        if self.json {
            return say_json(&all);
        }
        let rows = all.iter().flat_map(|family| {
            family.devices.iter().map(|one| {
                let kind = match &one.fault {
                    Some(fault) => fault.clone(),
                    None if one.device == "cpu" => "the fused operations".to_owned(),
                    None if one.software => "software".to_owned(),
                    None => "hardware".to_owned(),
                };
                let precisions: Vec<&str> = one.precisions.iter().map(|one| one.name()).collect();
                [one.device.clone(), one.name.clone(), kind, precisions.join(", ")]
            })
        });
        say(table(["device", "name", "what it is", "computes in"], rows, 4))?;
        for Listed { family, built, devices } in &all {
            match (built, devices.is_empty()) {
                (false, _) => note(format!("{family}: not in this build (--features {family})")),
                (true, true) => note(format!("{family}: no device on this machine")),
                (true, false) => {}
            }
        }
        Ok(())
    }
}

fn listed(family: DeviceFamily) -> Listed {
    let count = if family.is_built() { family.devices().len() } else { 0 };
    let device = |index: usize| {
        let name = DeviceName { family, index };
        let opened = name.open();
        let said = opened.as_ref().ok().and_then(about);
        let AboutDevice { name: said, software } = said.unwrap_or_else(|| AboutDevice {
            name: match family {
                DeviceFamily::Cpu => format!("{} threads", rayon::current_num_threads()),
                _ => "unknown".to_owned(),
            },
            software: false,
        });
        let has =
            |precision: &Precision| opened.as_ref().is_ok_and(|device| precision.is_on(device));
        let precisions = Precision::ALL.into_iter().filter(has).collect();
        let fault = opened.as_ref().err().map(ToString::to_string);
        ListedDevice { device: name.to_string(), name: said, software, precisions, fault }
    };
    Listed {
        family: family.name(),
        built: family.is_built(),
        devices: (0..count).map(device).collect(),
    }
}
