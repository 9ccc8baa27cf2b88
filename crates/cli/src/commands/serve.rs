//! `omma serve`

use std::{
    fs::{File, OpenOptions},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use burn::tensor::Device;
use clap::Args;
use omma_base::files::read_regular;
use omma_eval::OodScore;
use omma_serve::{AccessLog, Batching, Load, Options, Server, serve};
use serde_json::json;
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
};

use super::eval::Score;
use crate::{
    precision::PrecisionArguments,
    resolution::ResolutionArguments,
    screen::Stderr,
    serve::{Named, log_routing},
    subset::SubsetArguments,
    table::{note, say},
};

/// Answer what is in images over HTTP, with a page to try it.
///
/// A model, or several as one (PATH+PATH), under the name of its folder or one of its own (NAME=PATH). Images that come
/// at the same time are computed together, and each has the answer that it would have alone. SIGTERM and Ctrl-C end it
/// when everything that was asked is answered; SIGHUP reads the models again. Only this machine is let in unless
/// --listen says otherwise. docs/serving.md has the addresses, limits and figures.
///
/// Examples:
///   omma serve runs/default-1
///   omma serve runs/e3-1 pair=runs/vmoe-1+runs/vmoe-2 --port 9000
///   omma serve runs/limoe-1 --photos photos/
///   omma serve runs/default-1 --listen 0.0.0.0 --token-file token.txt
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Serve {
    /// Runs or checkpoints, each perhaps as NAME=PATH; PATH+PATH is a deep ensemble
    #[arg(required = true, value_name = "[NAME=]PATH[+PATH…]")]
    subjects: Vec<String>,
    /// The port; 0 for any that is free
    #[arg(long, default_value_t = 8000, env = "OMMA_PORT", hide_env = true)]
    port: u16,
    /// The address that is listened on; 0.0.0.0 lets everybody in
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST), env = "OMMA_LISTEN", hide_env = true)]
    listen: IpAddr,
    /// Images that are computed together at most
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_batch: u16,
    /// Milliseconds that the first of them waits for others
    #[arg(long, default_value_t = 2, value_name = "MS", value_parser = clap::value_parser!(u16).range(0..=10_000))]
    max_delay: u16,
    /// Images of a model that wait at most; more are told to come back (429)
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u16).range(1..))]
    max_queue: u16,
    /// Seconds that a request may take, its arrival included
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout: u16,
    /// Megabytes of a request at most
    #[arg(long, default_value_t = 32, value_name = "MIB", value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body: u16,
    /// A setting of predictions on top of the models' own, such as moe.k=4
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    subset: SubsetArguments,
    #[command(flatten)]
    resolution: ResolutionArguments,
    #[command(flatten)]
    precision: PrecisionArguments,
    /// Where MC samples and the noise of routers come from, in predictions that are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How far out of the distribution an image is taken to be
    #[arg(long, value_enum, default_value_t = Score::MaxProbability)]
    ood_score: Score,
    /// Images with a larger score are said, and counted, to be out of the distribution
    #[arg(long, value_name = "SCORE")]
    ood_threshold: Option<f64>,
    /// Photos for /search, by models that read text
    #[arg(long, value_name = "FOLDER")]
    photos: Option<PathBuf>,
    /// A file with a token that every request must bring (Authorization: Bearer …)
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The site whose pages may ask from a browser, or * for any
    #[arg(long, value_name = "ORIGIN")]
    cors: Option<String>,
    /// Let requests replace models (POST /v2/repository/models/NAME/load)
    #[arg(long)]
    allow_reload: bool,
    /// Where a line of JSON per request goes; - is standard error
    #[arg(long, value_name = "FILE")]
    access_log: Option<PathBuf>,
    /// Where the load of experts goes, a line of JSON per layer and minute, for omma routes
    #[arg(long, value_name = "FILE")]
    log_routing: Option<PathBuf>,
    /// Seconds between two entries of it
    #[arg(long, default_value_t = 60, value_name = "S", requires = "log_routing", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    log_routing_every: u32,
    /// Print the address and the names of the models as JSON
    #[arg(long)]
    json: bool,
}

/// Bytes of a token's file.
const MOST_TOKEN: u64 = 4096;
/// Threads that read and write; models have their own, and the pool's.
const NETWORK_THREADS: usize = 2;

impl Serve {
    pub(crate) fn run(self, device: &Device) -> Result<()> {
        let options = self.options()?;
        let access = self.access_log.as_deref().map(access_log).transpose()?;
        let routing = self.log_routing.as_deref().map(appended).transpose()?;
        if !self.listen.is_loopback() && options.token.is_none() {
            note("everybody who can reach this machine can ask; --token-file asks for a token");
        }
        let mut models = Vec::with_capacity(self.subjects.len());
        for subject in &self.subjects {
            let named = Named::parse(subject)?;
            models.push((named.name.clone(), self.load(named, device)));
        }
        let server = Server::start(models, options, access)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(NETWORK_THREADS)
            .enable_all()
            .build()
            .context("there are no threads for the network")?;
        runtime.block_on(self.serve(server, routing))
    }

    async fn serve(&self, server: Arc<Server>, routing: Option<File>) -> Result<()> {
        let address = SocketAddr::new(self.listen, self.port);
        let listener = TcpListener::bind(address).await.with_context(|| {
            format!("{address} cannot be listened on; --port takes another, 0 any that is free")
        })?;
        let address = listener.local_addr()?;
        // Before anybody is told where it is: from there on, signals are heard.
        let ends = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
        let [terminate, interrupt] = ends;
        let (terminate, interrupt) = (terminate?, interrupt?);
        tokio::spawn(reload_on(signal(SignalKind::hangup())?, server.clone()));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let every = Duration::from_secs(self.log_routing_every.into());
        let log = routing.map(|to| tokio::spawn(log_routing(server.clone(), to, every, ended)));
        let models = server.names();
        match self.json {
            true => say(json!({ "address": format!("http://{address}"), "models": models }))?,
            false => say(format!("serving {} on http://{address}", models.join(", ")))?,
        }
        serve(server, listener, asked_to_end(terminate, interrupt)).await?;
        drop(end);
        if let Some(log) = log {
            log.await?;
        }
        note("everything that was asked is answered");
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        let defaults = Options::default();
        let batching = Batching {
            max_batch: self.max_batch.into(),
            max_delay: Duration::from_millis(self.max_delay.into()),
            max_queue: self.max_queue.into(),
        };
        if self.cors.as_ref().is_some_and(|origin| !origin.bytes().all(|b| b.is_ascii_graphic())) {
            bail!("--cors is a site, such as https://example.org, or *");
        }
        let max_body = usize::from(self.max_body) << 20;
        Ok(Options {
            batching,
            timeout: Duration::from_secs(self.timeout.into()),
            max_body,
            max_held: defaults.max_held.max(max_body),
            ood_score: match self.ood_score {
                Score::MaxProbability => OodScore::MaxProbability,
                Score::Entropy => OodScore::Entropy,
                Score::Energy => OodScore::Energy,
            },
            ood_threshold: self.ood_threshold,
            token: self.token_file.as_deref().map(token).transpose()?,
            cors: self.cors.clone(),
            allow_reload: self.allow_reload,
            ..defaults
        })
    }

    /// How a model is read, now and later.
    fn load(&self, named: Named, device: &Device) -> Load {
        let settings = self.resolution.on_top_of(&self.subset.on_top_of(&self.settings));
        let (seed, photos, device) = (self.seed, self.photos.clone(), device.clone());
        let precision = self.precision;
        Box::new(move || {
            let read = named.read(&settings, precision, seed, photos.as_deref(), &device);
            read.map_err(|error| format!("{error:#}"))
        })
    }
}

/// The first line of a file.
fn token(path: &Path) -> Result<String> {
    let shown = || path.display().to_string();
    let bytes = read_regular(path, MOST_TOKEN).with_context(shown)?;
    let text = String::from_utf8_lossy(&bytes);
    let token = text.lines().next().unwrap_or_default().trim();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => {
            bail!("{} should have a token of plain letters and signs in its first line", shown())
        }
    }
}

fn appended(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| path.display().to_string())
}

fn access_log(path: &Path) -> Result<AccessLog> {
    match path.as_os_str() == "-" {
        true => Ok(AccessLog::new(Stderr)?),
        false => Ok(AccessLog::new(appended(path)?)?),
    }
}

/// Until the first signal; a second ends the process at once.
async fn asked_to_end(mut terminate: Signal, mut interrupt: Signal) {
    async fn either(terminate: &mut Signal, interrupt: &mut Signal) -> i32 {
        tokio::select! {
            _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
            _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        }
    }
    either(&mut terminate, &mut interrupt).await;
    note("answering what was asked, then ending; a second signal ends at once");
    tokio::spawn(async move {
        let signal = either(&mut terminate, &mut interrupt).await;
        std::process::exit(128 + signal);
    });
}

async fn reload_on(mut hangup: Signal, server: Arc<Server>) {
    while hangup.recv().await.is_some() {
        let server = server.clone();
        let _ = tokio::task::spawn_blocking(move || server.reload()).await;
    }
}
