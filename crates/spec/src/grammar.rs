//! eval.yaml, key by key: what is understood, and what will be but is not built yet.
//!
//! Invariant: a key or value is either in [`ROOT`], and then does what it says, or it is refused.
//! To build something: give it a place in [`ROOT`] and delete its row of [`NOT_BUILT`].

use crate::shape::{Field, Need, Shape, Topic, Variant};

/// Something that belongs to the format and is refused by name for now.
pub(crate) struct NotBuilt {
    pub(crate) topic: Topic,
    /// The key with those above it, the word, scheme or ending.
    pub(crate) word: &'static str,
    /// What to do now; `None` where the words that are built say it.
    pub(crate) instead: Option<&'static str>,
}

const fn not_built(topic: Topic, word: &'static str, instead: Option<&'static str>) -> NotBuilt {
    NotBuilt { topic, word, instead }
}

const COPY: Option<&str> = Some("copy it to this machine and give that path");
const JSONL: Option<&str> =
    Some("write JSON lines: one object with `image` and `captions` on each line");

const PLACED: Option<&str> = Some("leave it out: the planner places every component");

/// Later issues delete rows.
pub(crate) const NOT_BUILT: &[NotBuilt] = &[
    not_built(
        Topic::Key,
        "accuracy",
        Some("leave it out: sweep precisions and compare their rows of the report"),
    ),
    not_built(Topic::Key, "placement.text", PLACED),
    not_built(Topic::Key, "placement.vision", PLACED),
    not_built(Topic::Precision, "int8", None),
    not_built(Topic::Precision, "auto", None),
    not_built(Topic::OnOom, "degrade", Some("use split: it keeps the precision")),
    not_built(Topic::Format, "webdataset", None),
    not_built(Topic::Format, "parquet", None),
    not_built(Topic::Format, "coco", None),
    not_built(Topic::Scheme, "s3://", COPY),
    not_built(Topic::Scheme, "https://", COPY),
    not_built(Topic::CaptionsFile, ".tsv", JSONL),
    not_built(Topic::CaptionsFile, ".csv", JSONL),
];

/// The row about `word`, if there is one.
pub(crate) fn find_not_built(topic: Topic, word: &str) -> Option<&'static NotBuilt> {
    NOT_BUILT.iter().find(|row| row.topic == topic && row.word == word)
}

const fn field(
    key: &'static str,
    need: Need,
    shape: Shape,
    about: &'static str,
    example: &'static str,
) -> Field {
    Field { key, need, shape, about, example }
}

const fn word(topic: Topic, words: &'static [&'static str]) -> Shape {
    Shape::Word { topic, words, or_count: false }
}

/// The whole document.
pub(crate) const ROOT: Shape = Shape::Record(&[
    field("version", Need::Required, Shape::Version, "Version of this format.", "1"),
    field(
        "name",
        Need::Required,
        Shape::Text,
        "A title for people; it heads the report.",
        "tiny-clip on emoji",
    ),
    field(
        "models",
        Need::Required,
        Shape::List(&Shape::Record(MODEL)),
        "Models to evaluate; several make the slowest axis of the sweep.",
        "[{ path: models/tiny-clip }]",
    ),
    field(
        "datasets",
        Need::Required,
        Shape::Datasets(&Shape::Format(FORMATS)),
        "Sources of samples, by the names that tasks use.",
        "{ photos: { format: imagefolder, path: data/photos } }",
    ),
    field(
        "tasks",
        Need::Required,
        Shape::List(&Shape::Task(TASKS)),
        "What to measure; every trial does all of it.",
        "[{ zero_shot: { dataset: photos } }]",
    ),
    field(
        "sweep",
        Need::Default("{}"),
        Shape::Record(SWEEP),
        "Settings to try. The axes multiply in the order in which they stand here, after the \
         models; the last one changes fastest.",
        "{ precision: [fp32, bf16], batch: [32, 256] }",
    ),
    field(
        "memory",
        Need::Default("{}"),
        Shape::Record(MEMORY),
        "How much memory each slice may use, and what follows when it is refused.",
        "{ quota: 2 GiB }",
    ),
    field(
        "placement",
        Need::Default("{}"),
        Shape::Record(PLACEMENT),
        "Wishes about where work runs. They change time, and no result.",
        "{ split: always }",
    ),
    field(
        "on_bad_sample",
        Need::Default("quarantine"),
        word(Topic::OnBadSample, &["quarantine", "fail"]),
        "Whether a sample that cannot be read is left out, counted and named, or ends the run.",
        "fail",
    ),
]);

const MODEL: &[Field] = &[field(
    "path",
    Need::Required,
    Shape::Path { endings: None },
    "Folder in Hugging Face layout; a relative path starts at this file's folder.",
    "models/tiny-clip",
)];

const SWEEP: &[Field] = &[
    field(
        "precision",
        Need::Default("[fp32]"),
        Shape::List(&word(Topic::Precision, &["fp32", "fp16", "bf16"])),
        "Number formats to compute in.",
        "[fp32, bf16]",
    ),
    field(
        "batch",
        Need::Default("[auto]"),
        Shape::List(&Shape::Word { topic: Topic::Batch, words: &["auto"], or_count: true }),
        "Samples that go through a tower at once; `auto` lets the planner choose.",
        "[32, 256]",
    ),
];

const MEMORY: &[Field] = &[
    field(
        "quota",
        Need::Optional,
        Shape::Bytes,
        "Ceiling for each slice, with a unit; a slice's own ceiling wins if lower. Without it a \
         slice uses what its device offers, less a reserve.",
        "2 GiB",
    ),
    field(
        "on_oom",
        Need::Default("split"),
        word(Topic::OnOom, &["split", "fail"]),
        "Whether a batch that is refused memory is split, or fails its attempt.",
        "fail",
    ),
    field(
        "allocator",
        Need::Optional,
        Shape::Allocator,
        "Settings of the device's allocator, as PYTORCH_ALLOC_CONF spells them; without it they \
         are chosen for the device.",
        "garbage_collection_threshold:0.8,max_split_size_mb:128",
    ),
];

const PLACEMENT: &[Field] = &[field(
    "split",
    Need::Default("auto"),
    word(Topic::Split, &["auto", "always", "never"]),
    "Over how many slices work is spread: as many as are predicted to end it first, all, or one.",
    "always",
)];

const FORMATS: &[Variant] = &[
    Variant {
        name: "imagefolder",
        about: "A folder for each class, images inside.",
        fields: &[
            field(
                "path",
                Need::Required,
                Shape::Path { endings: None },
                "The folder of the class folders.",
                "data/photos",
            ),
            field(
                "classes",
                Need::Optional,
                Shape::Path { endings: None },
                "JSON file with the names (= folders), labels and prompt templates of the classes; \
                 without it the folders' names are the labels.",
                "data/classes.json",
            ),
        ],
    },
    Variant {
        name: "captions",
        about: "Images with one or several captions each.",
        fields: &[field(
            "path",
            Need::Required,
            Shape::Path { endings: Some(Topic::CaptionsFile) },
            "JSON lines: objects with `image` and `captions` (a list) or `caption`; image paths \
             start at the file's folder.",
            "data/captions.jsonl",
        )],
    },
];

const DATASET: Field = field(
    "dataset",
    Need::Required,
    Shape::DatasetName,
    "Name of a dataset that `datasets` declares.",
    "photos",
);

const TASKS: &[Variant] = &[
    Variant {
        name: "zero_shot",
        about: "Classification of images by the nearest class prompt.",
        fields: &[
            DATASET,
            field(
                "top_k",
                Need::Default("[1, 5]"),
                Shape::List(&Shape::Count),
                "Report how often the right class is among the first k.",
                "[1, 5]",
            ),
        ],
    },
    Variant {
        name: "retrieval",
        about: "Images from captions and captions from images.",
        fields: &[
            DATASET,
            field(
                "recall_at",
                Need::Default("[1, 5, 10]"),
                Shape::List(&Shape::Count),
                "Report how often a right answer is among the first k.",
                "[1, 5, 10]",
            ),
            field(
                "captions",
                Need::Default("first"),
                word(Topic::Captions, &["first", "all"]),
                "Which captions of an image take part; with `all` any matching one counts.",
                "all",
            ),
        ],
    },
];
