//! Pictures per second of one core, stage by stage, as one JSON object.
//!
//! `preprocess_rate FOLDER MODEL_FOLDER [SECONDS]`: reads every picture of the folder into memory,
//! then decodes, crops and normalises them in turn for about that long (default 3), three times, and
//! reports the fastest. Time is that of this process on the processor, so a busy machine does not
//! distort it much.

use std::{
    env,
    error::Error,
    fs,
    hint::black_box,
    path::{Path, PathBuf},
    time::Duration,
};

use orchestrator_data::{
    image::{DecodeLimits, RgbImage, decode},
    preprocess::Recipe,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [folder, model, rest @ ..] = arguments.as_slice() else {
        return Err("usage: preprocess_rate FOLDER MODEL_FOLDER [SECONDS]".into());
    };
    let seconds: f64 = rest.first().map_or(Ok(3.0), |text| text.parse())?;
    let files = pictures(Path::new(folder))?;
    let recipe = Recipe::open(Path::new(model))?;
    let rates = measure(&files, &recipe, Duration::from_secs_f64(seconds / 3.0))?;
    let megabytes = files.iter().map(Vec::len).sum::<usize>() as f64 / 1e6;
    let report = serde_json::json!({
        "pictures": files.len(),
        "megabytes": megabytes,
        "size": recipe.size().0,
        "per_cpu_second": {
            "decode": rates[0], "crop": rates[1], "normalise": rates[2], "whole": rates[3],
        },
    });
    #[expect(clippy::print_stdout, reason = "this is the program's output")]
    {
        println!("{report}");
    }
    Ok(())
}

/// The bytes of every file below `folder`, sorted by path.
fn pictures(folder: &Path) -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
    let (mut open, mut paths) = (vec![folder.to_owned()], Vec::<PathBuf>::new());
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { open.push(path) } else { paths.push(path) }
        }
    }
    paths.sort();
    Ok(paths.iter().map(fs::read).collect::<Result<_, _>>()?)
}

/// Pictures per second of processor time: decode, crop, normalise, all three.
fn measure(files: &[Vec<u8>], recipe: &Recipe, time: Duration) -> Result<[f64; 4], Box<dyn Error>> {
    let limits = DecodeLimits::default();
    let images: Vec<RgbImage> =
        files.iter().map(|file| decode(file, &limits)).collect::<Result<_, _>>()?;
    let crops: Vec<_> = images.iter().map(|image| recipe.crop(image)).collect();
    let (width, height) = recipe.size();
    let mut numbers = vec![0.0_f32; width as usize * height as usize * 3];
    let count = files.len();
    let mut failed = false;
    Ok([
        rate(count, time, |index| {
            failed |= black_box(decode(&files[index], &limits)).is_err();
        })?,
        rate(count, time, |index| {
            black_box(recipe.crop(&images[index]));
        })?,
        rate(count, time, |index| {
            recipe.normalise(&crops[index], black_box(&mut numbers));
        })?,
        rate(count, time, |index| {
            if let Ok(image) = decode(&files[index], &limits) {
                recipe.normalise(&recipe.crop(&image), black_box(&mut numbers));
            }
        })?,
    ])
}

/// The best of three rounds of about `time` each.
fn rate(count: usize, time: Duration, mut one: impl FnMut(usize)) -> Result<f64, Box<dyn Error>> {
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        let start = processor_time()?;
        let (mut done, mut spent) = (0_u32, Duration::ZERO);
        while spent < time {
            (0..count).for_each(&mut one);
            done += u32::try_from(count)?;
            spent = processor_time()?.saturating_sub(start);
        }
        best = best.max(f64::from(done) / spent.as_secs_f64());
    }
    Ok(best)
}

/// Processor time of this (single-threaded) process, from the kernel's scheduler: nanoseconds.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let text = fs::read_to_string("/proc/self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().ok_or("empty /proc/self/schedstat")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}
