//! How tokens are picked and texts ended, from command-line options.

use clap::Args;
use entensor_models::sampling::{Sampler, SamplerConfig, StopError, StopStrings};

use crate::error::CliError;

/// How tokens are picked.
#[derive(Args)]
pub(crate) struct SamplingArgs {
    /// How freely tokens are picked: 0 takes the likeliest one, 1 follows the model, more is wilder
    #[arg(long, value_name = "T", default_value_t = 0.7, allow_negative_numbers = true)]
    temp: f32,
    /// Picks among the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 40, allow_negative_numbers = true)]
    top_k: u32,
    /// Picks among the likeliest tokens that together have this probability; 1 for all
    #[arg(long, value_name = "P", default_value_t = 0.95, allow_negative_numbers = true)]
    top_p: f32,
    /// Picks among tokens that are at least P times as likely as the likeliest; 0 for all
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    min_p: f32,
    /// Picks among tokens before the tail of the distribution; 1 for all
    #[arg(long, value_name = "Z", default_value_t = 1.0, allow_negative_numbers = true)]
    tail_free: f32,
    /// Makes tokens that occurred lately less likely; 1 changes nothing
    #[arg(long, value_name = "R", default_value_t = 1.0, allow_negative_numbers = true)]
    repeat_penalty: f32,
    /// How many of the last tokens that is about, those of the prompt as well
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    repeat_last_n: u32,
    /// Where the random sequence starts
    #[arg(long, value_name = "S", default_value_t = 0, allow_negative_numbers = true)]
    seed: u64,
    /// Ends the text before this text; can be given several times
    #[arg(long = "stop", value_name = "TEXT", allow_hyphen_values = true)]
    stops: Vec<String>,
}

impl SamplingArgs {
    /// The sampler, if the settings can be.
    pub(crate) fn sampler(&self) -> Result<Sampler, CliError> {
        let &Self { temp: temperature, top_k, top_p, min_p, tail_free, repeat_penalty, repeat_last_n, seed, .. } = self;
        let config = SamplerConfig { repeat_penalty, repeat_last_n, top_k, tail_free, top_p, min_p, temperature, seed };
        Ok(Sampler::new(config)?)
    }

    /// What ends a text.
    pub(crate) fn stop_strings(&self) -> Result<StopStrings, CliError> {
        StopStrings::new(self.stops.iter().map(String::as_str))
            .map_err(|error: StopError| CliError::Usage(error.to_string()))
    }
}
