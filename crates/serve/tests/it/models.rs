//! Small models, and servers around them.

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use omma_base::Seed;
use omma_data::{
    Picture,
    text::{Tokenizer, TokenizerKind},
};
use omma_eval::System;
use omma_model::{apply_settings, preset, with_values};
use omma_serve::{AccessLog, Batching, Load, Options, Server, Subject, serve};
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot, task::JoinHandle};

const SMALL: [&str; 8] = [
    "resolution=16",
    "patch=4",
    "width=16",
    "depth=2",
    "heads=2",
    "mlp=32",
    "moe.experts=4",
    "moe.placement=last-1",
];

/// A V-MoE of ten classes that has an opinion.
pub(crate) fn system(settings: &[&str], seed: u64) -> System {
    let settings: Vec<&str> = SMALL.iter().chain(settings).copied().collect();
    let config = apply_settings(&preset("vmoe-tiny").unwrap(), &settings).unwrap();
    of_config(config, seed)
}

fn of_config(config: omma_model::ModelConfig, seed: u64) -> System {
    let device = Device::flex();
    let model = config.init(Seed::new(seed), &device).unwrap();
    let model = with_values(model, |parameter| {
        let count: usize = parameter.shape.iter().product();
        let values = (0..count).map(|place| ((place * 37) % 17) as f32 / 8.0 - 1.0);
        Ok(parameter.name.starts_with("head.").then(|| values.collect()))
    });
    System::new(vec![("one".to_owned(), model.unwrap())], &device).unwrap()
}

/// A model that labels pixels with three classes.
pub(crate) fn segmenter() -> System {
    let config = apply_settings(&preset("vmoe-tiny").unwrap(), &SMALL).unwrap();
    of_config(config.into_segmenter(3), 3)
}

/// A model that compares images with texts, and knows the words of a few.
pub(crate) fn reader() -> System {
    let captions = (0..200).map(|number| {
        let colour = ["red", "blue", "green", "yellow"][number % 4];
        let shape = ["star", "square", "circle", "ring", "cross"][number % 5];
        format!("a picture of one {colour} {shape}, number {number}")
    });
    let tokenizer = Tokenizer::learn(captions, TokenizerKind::Unigram, 300).unwrap();
    let own = ["text.vocabulary=300", "embedding=12"];
    let settings: Vec<&str> = SMALL[..7].iter().chain(&own).copied().collect();
    let config = apply_settings(&preset("limoe-tiny").unwrap(), &settings).unwrap();
    let device = Device::flex();
    let model = config.init(Seed::new(5), &device).unwrap();
    let system = System::new(vec![("one".to_owned(), model)], &device).unwrap();
    system.reading(vec![Some(tokenizer)])
}

pub(crate) fn subject(system: System) -> Subject {
    let names = ["ant", "bee", "cow", "dog", "eel", "fox", "gnu", "hen", "ibex", "jay"];
    Subject {
        system,
        classes: names.map(str::to_owned).to_vec(),
        temperature: None,
        training: Vec::new(),
        photos: None,
    }
}

pub(crate) fn load(make: impl Fn() -> Result<Subject, String> + Send + Sync + 'static) -> Load {
    Box::new(make)
}

/// A picture of noise, and its file.
pub(crate) fn png(number: usize) -> Vec<u8> {
    let pixel = |place: usize| ((place * (31 + number) + 7 * number) % 251) as u8;
    let pixels = (0..24 * 20 * 3).map(pixel).collect();
    Picture { width: 24, height: 20, pixels }.png().unwrap()
}

/// Answers at once.
pub(crate) fn quick() -> Options {
    let batching = Batching { max_delay: Duration::ZERO, ..Batching::default() };
    Options { batching, ..Options::default() }
}

/// Waits for a condition.
pub(crate) fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not come to that");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server that runs until it is stopped or dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) server: Arc<Server>,
    stop: Option<oneshot::Sender<()>>,
    done: Option<JoinHandle<std::io::Result<()>>>,
    runtime: Runtime,
}

impl Running {
    pub(crate) fn with(options: Options) -> Self {
        let one = || Ok(subject(system(&["moe.members=2"], 3)));
        Self::of(vec![("one".to_owned(), load(one))], options, None)
    }

    pub(crate) fn of(
        models: Vec<(String, Load)>,
        options: Options,
        log: Option<AccessLog>,
    ) -> Self {
        let server = Server::start(models, options, log).unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let own = server.clone();
        let done = runtime.spawn(async move {
            serve(own, listener, async {
                let _ = stopped.await;
            })
            .await
        });
        Self { address, server, stop: Some(stop), done: Some(done), runtime }
    }

    /// Asks it to stop.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits until it has.
    pub(crate) fn join(&mut self) {
        self.stop();
        if let Some(done) = self.done.take() {
            self.runtime.block_on(done).unwrap().unwrap();
        }
    }
}
