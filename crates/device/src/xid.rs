//! Critical errors that NVIDIA's driver reports (XIDs): what each one is and what follows.
//!
//! Numbers and advice are those of NVIDIA's catalogue ("Analyzing Xid Errors with the Xid Catalog",
//! docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read 2026-11-30; column
//! "Resolution Bucket (Immediate Action)"). Left out: numbers that it calls unused, and those that
//! it gives no bucket.
//!
//! What follows ([`Xid::class`]) is not the catalogue's advice. It asks whether the next unit may be
//! computed on the device, and errs on the safe side: whatever is not known to be the application's
//! is the device's. The list of the former is that of NVIDIA's device plugin for Kubernetes
//! (internal/rm/health.go).

use std::fmt;

use orchestrator_types::XidClass;

use Advice::{
    CheckMechanicals, ContactSupport, Ignore, ResetGpu, RestartApp, RestartNode, RestartVm,
    UpdateSoftware, Workflow,
};

/// What NVIDIA's catalogue advises to do at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// IGNORE
    Ignore,
    /// RESTART_APP
    RestartApp,
    /// RESET_GPU
    ResetGpu,
    /// RESTART_BM: restart the machine.
    RestartNode,
    /// RESTART_VM
    RestartVm,
    /// CHECK_MECHANICALS
    CheckMechanicals,
    /// UPDATE_SWFW
    UpdateSoftware,
    /// CONTACT_SUPPORT
    ContactSupport,
    /// A procedure of its own: WORKFLOW_XID_45, WORKFLOW_NVLINK_ERR, CHECK_UVM, XID_154 …
    Workflow,
}

/// A critical error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// NVIDIA's number.
    pub number: u64,
    /// What it means; `None` where the catalogue does not say.
    pub meaning: Option<(&'static str, Advice)>,
}

/// The error with this number.
pub fn xid(number: u64) -> Xid {
    let found = CATALOGUE.iter().find(|(known, ..)| *known == number);
    Xid { number, meaning: found.map(|(_, name, advice)| (*name, *advice)) }
}

impl Xid {
    /// What follows from it.
    pub fn class(self) -> XidClass {
        if APPLICATION.contains(&self.number) {
            XidClass::Application
        } else if NEEDS_RESET.contains(&self.number) {
            XidClass::NeedsReset
        } else {
            XidClass::Fault
        }
    }
}

impl fmt::Display for Xid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning {
            Some((name, advice)) => {
                write!(f, "XID {}: {name} (NVIDIA advises: {advice})", self.number)
            }
            None => write!(f, "XID {}, which NVIDIA's catalogue does not explain", self.number),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ignore => "ignore it",
            RestartApp => "restart the application",
            ResetGpu => "reset the GPU",
            RestartNode => "restart the machine",
            RestartVm => "restart the virtual machine",
            CheckMechanicals => "check cables and power",
            UpdateSoftware => "update driver and firmware",
            ContactSupport => "contact support",
            Workflow => "follow the catalogue's procedure",
        })
    }
}

/// Errors of the process that computed, or consequences of its end.
const APPLICATION: &[u64] = &[13, 31, 43, 45, 68, 109];

/// Errors after which the GPU answers nobody until it is reset. Nothing here resets it: other
/// processes may use the node.
const NEEDS_RESET: &[u64] = &[79, 119, 120];

/// By number.
const CATALOGUE: &[(u64, &str, Advice)] = &[
    (8, "GPU stopped processing", RestartApp),
    (13, "graphics engine exception", RestartApp),
    (25, "illegal notification of the graphics engine", RestartApp),
    (31, "GPU memory page fault", RestartApp),
    (32, "invalid or corrupted push buffer", RestartApp),
    (37, "driver firmware error", Ignore),
    (38, "driver firmware error", Ignore),
    (39, "copy engine exception", RestartApp),
    (40, "copy engine exception", RestartApp),
    (41, "copy engine exception", RestartApp),
    (43, "GPU stopped processing", Ignore),
    (44, "graphics engine fault during a context switch", Ignore),
    (45, "channels removed after an earlier error or a kill", Workflow),
    (46, "GPU stopped processing", ResetGpu),
    (48, "uncorrectable memory error", Workflow),
    (54, "auxiliary power is not connected", CheckMechanicals),
    (60, "video processor exception", RestartApp),
    (62, "internal micro-controller halt", ResetGpu),
    (63, "memory row remapped", Ignore),
    (64, "memory row remapping failed", ResetGpu),
    (66, "illegal access by the driver", Ignore),
    (67, "illegal access by the driver", Ignore),
    (68, "video decoder exception", RestartApp),
    (69, "graphics engine class error", RestartApp),
    (70, "copy engine error", RestartApp),
    (71, "copy engine error", RestartApp),
    (72, "copy engine error", RestartApp),
    (74, "NVLink error", Workflow),
    (75, "copy engine error", RestartApp),
    (76, "copy engine error", RestartApp),
    (77, "copy engine error", RestartApp),
    (78, "vGPU start error", UpdateSoftware),
    (79, "GPU has fallen off the bus", RestartNode),
    (80, "corrupted data sent to the GPU", RestartApp),
    (82, "image decoder error", RestartApp),
    (83, "video decoder error", RestartApp),
    (84, "video decoder error", RestartApp),
    (85, "copy engine error", RestartApp),
    (86, "optical flow engine exception", RestartApp),
    (88, "video decoder error", RestartApp),
    (89, "video decoder error", RestartApp),
    (92, "high rate of single-bit memory errors", Ignore),
    (93, "InfoROM wear limit exceeded", Ignore),
    (94, "contained memory error", RestartApp),
    (95, "uncontained memory error", ResetGpu),
    (109, "context switch timeout", ResetGpu),
    (110, "security fault", ResetGpu),
    (119, "GSP RPC timeout", ResetGpu),
    (120, "GSP error", ResetGpu),
    (121, "corrected C2C link error", Ignore),
    (136, "link training failed", ResetGpu),
    (137, "NVLink privilege error", Ignore),
    (140, "unrecovered memory error", ResetGpu),
    (141, "CUDA fast path error", Ignore),
    (142, "video encoder error", ContactSupport),
    (143, "GPU initialisation error", ResetGpu),
    (144, "NVLink error", Workflow),
    (145, "NVLink error", Workflow),
    (146, "NVLink error", Workflow),
    (147, "NVLink error", Workflow),
    (148, "NVLink error", Workflow),
    (149, "NVLink error", Workflow),
    (150, "NVLink error", Workflow),
    (151, "key rotation error", RestartVm),
    (154, "recovery action changed", Workflow),
    (155, "NVLink software-defined error", ResetGpu),
    (156, "resource retired", ResetGpu),
    (157, "resource retirement failed", Ignore),
    (158, "GPU fatal timeout", ResetGpu),
    (159, "CHI non-data error", Workflow),
    (160, "channel retired", Ignore),
    (161, "channel retirement failed", Ignore),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_one_class_and_unknown_ones_are_the_devices() {
        let class = |number| xid(number).class();
        for number in [13, 31, 43, 45, 68, 109] {
            assert_eq!(class(number), XidClass::Application, "{number}");
        }
        for number in [79, 119, 120] {
            assert_eq!(class(number), XidClass::NeedsReset, "{number}");
        }
        for number in [8, 48, 62, 63, 74, 94, 95, 140, 154, 999, u64::MAX] {
            assert_eq!(class(number), XidClass::Fault, "{number}");
        }
    }

    #[test]
    fn the_catalogue_names_each_number_once_and_all_that_have_a_class() {
        assert!(CATALOGUE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for number in APPLICATION.iter().chain(NEEDS_RESET) {
            assert!(xid(*number).meaning.is_some(), "{number}");
        }
    }

    #[test]
    fn errors_are_told_with_what_to_do() {
        let told = [79, 13, 45, 7].map(|number| xid(number).to_string()).join("\n");
        insta::assert_snapshot!(told, @r"
        XID 79: GPU has fallen off the bus (NVIDIA advises: restart the machine)
        XID 13: graphics engine exception (NVIDIA advises: restart the application)
        XID 45: channels removed after an earlier error or a kill (NVIDIA advises: follow the catalogue's procedure)
        XID 7, which NVIDIA's catalogue does not explain
        ");
    }
}
