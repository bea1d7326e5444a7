//! What NVML answers on machines with divided GPUs: A100, H100 and H200, in single and in mixed mode.
//!
//! **Composed, not taken from machines of ours**, which have no GPU that may be divided. What each
//! figure comes from:
//!
//! - Profiles, and how many instances there can be: NVIDIA's MIG user guide, "Supported MIG profiles".
//! - Memory of an instance (MiB): `nvidia-smi` on machines of others, as they published it. A100-40GB:
//!   4864, 9984 and 20096 (that user guide's own examples). A100-80GB: 19968 (nvitop, pull request 8);
//!   9728 and 40192 as NVIDIA's go-nvml has them or `-lgip` prints them (9.50 GiB). H100: 9984, 20096,
//!   40448 (`-lgip`: 9.75, 19.62 and 39.50 GiB), 81152 (79.25). H200: 16384, 33280 and 143360
//!   (`-lgip`: 16.00, 32.50 and 140.00 GiB), 71424 (torch on a `3g.71gb`: 69.8 GiB).
//! - Numbers of GPU instances: those outputs. 7g is 0, 4g and 3g are 1 and 2, 2g are 3 to 5, 1g are 7
//!   to 13. Two compute instances of one GPU instance are listed next to each other, each with the
//!   memory of both ("Shared Memory-Usage").
//! - What an idle instance uses: the same outputs (3 to 44 MiB).
//! - Slots: NVML tells the most instances that there could be (7), and not found for the others. No
//!   utilisation of instances, none of a GPU in MIG mode ("N/A").
//! - In a container: no permission for the memory of the GPU around (nvidia-container-toolkit, issue
//!   842), processes by the host's pids.
//!
//! UUIDs are made up.

use serde_json::{Value, json};

/// A product and its instances' memory in MiB, by profile.
struct Product {
    name: &'static str,
    mib: u64,
    capability: [u32; 2],
    instances: &'static [(&'static str, u64)],
}

const A100_40: Product = Product {
    name: "NVIDIA A100-SXM4-40GB",
    mib: 40_960,
    capability: [8, 0],
    instances: &[
        ("1g.5gb", 4_864),
        ("2g.10gb", 9_984),
        ("1c.2g.10gb", 9_984),
        ("3g.20gb", 20_096),
        ("4g.20gb", 20_096),
        ("7g.40gb", 40_192),
    ],
};
const A100_80: Product = Product {
    name: "NVIDIA A100-SXM4-80GB",
    mib: 81_920,
    capability: [8, 0],
    instances: &[("1g.10gb", 9_728), ("2g.20gb", 19_968), ("3g.40gb", 40_192), ("4g.40gb", 40_192)],
};
const H100_80: Product = Product {
    name: "NVIDIA H100 80GB HBM3",
    mib: 81_559,
    capability: [9, 0],
    instances: &[
        ("1g.10gb", 9_984),
        ("1g.20gb", 20_096),
        ("2g.20gb", 20_096),
        ("3g.40gb", 40_448),
        ("7g.80gb", 81_152),
    ],
};
const H200_141: Product = Product {
    name: "NVIDIA H200",
    mib: 143_771,
    capability: [9, 0],
    instances: &[
        ("1g.18gb", 16_384),
        ("1g.35gb", 33_280),
        ("2g.35gb", 33_280),
        ("3g.71gb", 71_424),
        ("4g.71gb", 71_424),
        ("7g.141gb", 143_360),
    ],
};

/// One slot of NVML's list of a GPU's instances.
#[derive(Clone, Copy)]
enum Slot {
    /// Nothing there.
    Hole,
    /// Somebody else's, seen from a container.
    Foreign,
    /// Profile, GPU instance, compute instance, MiB in use.
    Instance(&'static str, u32, u32, u64),
}

use Slot::{Foreign, Hole, Instance};

/// One GPU.
struct Gpu {
    product: &'static Product,
    /// `None`: not in MIG mode.
    slots: Option<[Slot; 7]>,
}

/// One machine.
pub(crate) struct Machine {
    /// For snapshots.
    pub(crate) name: &'static str,
    driver: &'static str,
    cuda: [u32; 2],
    gpus: &'static [Gpu],
    /// Whether it is seen from a container without permission on the GPU around its instance.
    contained: bool,
}

/// Seven alike, as drivers number them.
const fn seven(profile: &'static str, used: u64) -> [Slot; 7] {
    let mut slots = [Hole; 7];
    let mut number = 0;
    while number < 7 {
        slots[number as usize] = Instance(profile, 7 + number, 0, used);
        number += 1;
    }
    slots
}

const fn machine(name: &'static str, gpus: &'static [Gpu]) -> Machine {
    Machine { name, driver: "580.95.05", cuda: [13, 0], gpus, contained: false }
}

/// Every machine.
pub(crate) const MACHINES: [Machine; 13] = [
    machine("a100_40_single", &[Gpu { product: &A100_40, slots: Some(seven("1g.5gb", 3)) }]),
    // 4g + two compute instances on one 2g + 1g, and what the removal of others left open.
    machine(
        "a100_40_mixed_with_shared_memory",
        &[Gpu {
            product: &A100_40,
            slots: Some([
                Instance("4g.20gb", 2, 0, 142),
                Instance("1c.2g.10gb", 3, 0, 71),
                Instance("1c.2g.10gb", 3, 1, 71),
                Instance("1g.5gb", 9, 0, 36),
                Hole,
                Hole,
                Hole,
            ]),
        }],
    ),
    machine("a100_80_single", &[Gpu { product: &A100_80, slots: Some(seven("1g.10gb", 13)) }]),
    machine(
        "a100_80_mixed_with_holes",
        &[Gpu {
            product: &A100_80,
            slots: Some([
                Hole,
                Instance("3g.40gb", 2, 0, 44),
                Hole,
                Instance("2g.20gb", 3, 0, 14_366),
                Hole,
                Hole,
                Instance("1g.10gb", 13, 0, 13),
            ]),
        }],
    ),
    machine("h100_80_single", &[Gpu { product: &H100_80, slots: Some(seven("1g.10gb", 15)) }]),
    machine(
        "h100_80_mixed",
        &[Gpu {
            product: &H100_80,
            slots: Some([
                Instance("3g.40gb", 2, 0, 44),
                Instance("1g.20gb", 3, 0, 25),
                Instance("2g.20gb", 5, 0, 25),
                Instance("1g.10gb", 10, 0, 12),
                Hole,
                Hole,
                Hole,
            ]),
        }],
    ),
    machine(
        "h100_80_one_instance",
        &[Gpu {
            product: &H100_80,
            slots: Some([Instance("7g.80gb", 0, 0, 90), Hole, Hole, Hole, Hole, Hole, Hole]),
        }],
    ),
    machine("h200_141_single", &[Gpu { product: &H200_141, slots: Some(seven("1g.18gb", 16)) }]),
    // One GPU divided, one whole, one in MIG mode and not divided yet.
    machine(
        "h200_141_mixed_beside_a_whole_gpu",
        &[
            Gpu {
                product: &H200_141,
                slots: Some([
                    Hole,
                    Instance("4g.71gb", 1, 0, 88),
                    Hole,
                    Hole,
                    Instance("2g.35gb", 5, 0, 33),
                    Hole,
                    Instance("1g.35gb", 6, 0, 33),
                ]),
            },
            Gpu { product: &H200_141, slots: None },
            Gpu { product: &H200_141, slots: Some([Hole; 7]) },
        ],
    ),
    machine(
        "h200_141_one_instance",
        &[Gpu {
            product: &H200_141,
            slots: Some([Instance("7g.141gb", 0, 0, 176), Hole, Hole, Hole, Hole, Hole, Hole]),
        }],
    ),
    Machine {
        contained: true,
        ..machine(
            "h200_141_in_a_container",
            &[Gpu {
                product: &H200_141,
                slots: Some([
                    Foreign,
                    Foreign,
                    Instance("3g.71gb", 2, 0, 60),
                    Hole,
                    Hole,
                    Hole,
                    Hole,
                ]),
            }],
        )
    },
    Machine {
        contained: true,
        ..machine(
            "a100_40_part_in_a_container",
            &[Gpu {
                product: &A100_40,
                slots: Some([
                    Foreign,
                    Instance("1c.2g.10gb", 3, 1, 2_000),
                    Hole,
                    Hole,
                    Hole,
                    Hole,
                    Hole,
                ]),
            }],
        )
    },
    Machine {
        driver: "550.54.15",
        cuda: [12, 4],
        ..machine(
            "h100_80_with_an_old_driver",
            &[Gpu { product: &H100_80, slots: Some(seven("1g.10gb", 15)) }],
        )
    },
];

impl Machine {
    /// The answers, as recordings have them.
    pub(crate) fn answers(&self) -> Value {
        let mut devices = serde_json::Map::new();
        let mut gpus = Vec::new();
        for (number, gpu) in self.gpus.iter().enumerate() {
            let id = format!("GPU-6f1c2d3e-0a1b-4c5d-8e9f-0000000000{number:02}");
            let mut slots = Vec::new();
            for (slot, told) in gpu.slots.iter().flatten().enumerate() {
                slots.push(match told {
                    Hole => json!({ "error": "not_found" }),
                    Foreign => json!({ "error": "no_permission" }),
                    Instance(profile, gpu_instance, compute_instance, used) => {
                        let place = json!({
                            "gpu_instance": gpu_instance,
                            "compute_instance": compute_instance,
                        });
                        let instance =
                            format!("MIG-3b7e9a10-52c4-5d6e-9f80-00000000{number:02}{slot:02}");
                        let device = self.instance(gpu.product, profile, *used, &place);
                        devices.insert(instance.clone(), device);
                        json!(instance)
                    }
                });
            }
            devices.insert(id.clone(), self.whole(gpu, &slots));
            gpus.push(id);
        }
        json!({ "driver": self.driver, "cuda": self.cuda, "gpus": gpus, "devices": devices })
    }

    fn instance(&self, product: &Product, profile: &str, used: u64, place: &Value) -> Value {
        let sizes = product.instances.iter();
        let (_, mib) = sizes.clone().find(|(name, _)| *name == profile).unwrap();
        json!({
            "name": format!("{} MIG {profile}", product.name),
            "capability": product.capability,
            "place": place,
            "memory": memory(*mib, used),
            "utilisation": { "error": "not_supported" },
            // Of some container on the host, whose pid is not ours.
            "processes": if self.contained { json!({ "error": "no_permission" }) } else {
                json!([{ "pid": 2_114_907, "used": null }])
            },
        })
    }

    fn whole(&self, gpu: &Gpu, slots: &[Value]) -> Value {
        let refused = json!({ "error": "no_permission" });
        let divided = gpu.slots.is_some();
        json!({
            "name": gpu.product.name,
            "capability": gpu.product.capability,
            "memory": if self.contained { refused.clone() } else { memory(gpu.product.mib, 633) },
            "utilisation": if divided { json!({ "error": "not_supported" }) } else {
                json!({ "compute_percent": 0, "memory_percent": 0 })
            },
            "processes": if self.contained { refused } else { json!([]) },
            "mig": if divided { json!(slots) } else { json!([]) },
        })
    }
}

fn memory(mib: u64, used: u64) -> Value {
    json!({ "total": mib << 20, "free": (mib - used) << 20, "reserved": 0 })
}
