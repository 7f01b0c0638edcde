//! Files that trainers save beside a model to resume training. No reader needs them, and they are
//! often larger than the model.

/// A file or folder at the top of a model's directory that a trainer saves to resume training.
struct SavedState {
    /// The name, with at most one `*`, which matches one or more characters. The name of a folder
    /// ends in `/`.
    name: &'static str,
    /// The reason for leaving it out, as users see it.
    what: &'static str,
}

const TRANSFORMERS: &str = "training state of transformers";
const ACCELERATE: &str = "training state of accelerate";
const FSDP: &str = "training state of FSDP";
const DEEPSPEED: &str = "training state of DeepSpeed";
const VERL: &str = "training state of verl";
const TORCHTUNE: &str = "training state of torchtune";
const LEROBOT: &str = "training state of LeRobot";

/// Names from the source code of the trainers, as of November 2026. They are exact, so that a
/// folder such as `scheduler/` of a diffusion pipeline is published.
const SAVED: &[SavedState] = &[
    // transformers 5.24, trainer.py: OPTIMIZER_NAME, SCHEDULER_NAME, SCALER_NAME,
    // TRAINER_STATE_NAME, TRAINING_ARGS_NAME, `_save_rng_state`, and user_content.pt of SageMaker.
    row("optimizer.pt", TRANSFORMERS),
    row("scheduler.pt", TRANSFORMERS),
    row("scaler.pt", TRANSFORMERS),
    row("rng_state.pth", TRANSFORMERS),
    row("rng_state_*.pth", TRANSFORMERS),
    row("trainer_state.json", TRANSFORMERS),
    row("training_args.bin", TRANSFORMERS),
    row("user_content.pt", TRANSFORMERS),
    // accelerate 1.15, utils/constants.py and checkpointing.py: from the second file on, names have
    // a number. The DeepSpeed folder is named in accelerator.py, `save_state`.
    row("optimizer.bin", ACCELERATE),
    row("optimizer_*.bin", ACCELERATE),
    row("scheduler.bin", ACCELERATE),
    row("scheduler_*.bin", ACCELERATE),
    row("sampler.bin", ACCELERATE),
    row("sampler_*.bin", ACCELERATE),
    row("dl_state_dict.bin", ACCELERATE),
    row("dl_state_dict_*.bin", ACCELERATE),
    row("random_states_*.pkl", ACCELERATE),
    row("custom_checkpoint_*.pkl", ACCELERATE),
    row("pytorch_model/", ACCELERATE),
    // accelerate 1.15, utils/fsdp_utils.py, which transformers also calls.
    row("pytorch_model_fsdp.bin", FSDP),
    row("pytorch_model_fsdp_*.bin", FSDP),
    row("pytorch_model_fsdp_*/", FSDP),
    row("optimizer_*/", FSDP),
    // DeepSpeed 0.19, runtime/engine.py: `save_checkpoint`, `_get_rank_zero_ckpt_name`,
    // `_get_ckpt_name`, `_copy_recovery_script`. The files are in a folder named by its tag.
    row("global_step*/", DEEPSPEED),
    row("latest", DEEPSPEED),
    row("zero_to_fp32.py", DEEPSPEED),
    row("*_optim_states.pt", DEEPSPEED),
    row("*_model_states.pt", DEEPSPEED),
    // verl 0.9, utils/checkpoint/fsdp_checkpoint_manager.py.
    row("model_world_size_*.pt", VERL),
    row("optim_world_size_*.pt", VERL),
    row("extra_state_world_size_*.pt", VERL),
    row("fsdp_config.json", VERL),
    // torchtune 0.6, training/checkpointing/_utils.py: RECIPE_STATE_DIRNAME.
    row("recipe_state.pt", TORCHTUNE),
    row("recipe_state/", TORCHTUNE),
    // LeRobot 0.4, utils/constants.py: TRAINING_STEP, OPTIMIZER_PARAM_GROUPS, SCHEDULER_STATE,
    // TRAINING_STATE_DIR.
    row("training_step.json", LEROBOT),
    row("optimizer_param_groups.json", LEROBOT),
    row("scheduler_state.json", LEROBOT),
    row("training_state/", LEROBOT),
];

const fn row(name: &'static str, what: &'static str) -> SavedState {
    SavedState { name, what }
}

impl SavedState {
    fn is(&self, name: &str) -> bool {
        let Some((before, after)) = self.name.split_once('*') else {
            return name == self.name;
        };
        let rest = name.strip_prefix(before);
        rest.is_some_and(|rest| rest.len() > after.len() && rest.ends_with(after))
    }
}

/// Returns the training state that a file belongs to: the name of the file or folder at the top of
/// the model's directory, with the reason for leaving it out in parentheses. `None` for all other
/// files.
pub(crate) fn training_state(file: &str) -> Option<String> {
    let top = match file.find('/') {
        Some(end) => &file[..=end],
        None => file,
    };
    let saved = SAVED.iter().find(|saved| saved.is(top))?;
    Some(format!("{} ({})", top.trim_end_matches('/'), saved.what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_exact_and_at_the_top() {
        for (file, left) in [
            (
                "optimizer.pt",
                "optimizer.pt (training state of transformers)",
            ),
            (
                "rng_state_7.pth",
                "rng_state_7.pth (training state of transformers)",
            ),
            (
                "optimizer_1.bin",
                "optimizer_1.bin (training state of accelerate)",
            ),
            (
                "optimizer_0/__0_0.distcp",
                "optimizer_0 (training state of FSDP)",
            ),
            (
                "global_step12/a/b.pt",
                "global_step12 (training state of DeepSpeed)",
            ),
            (
                "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt (training state of DeepSpeed)",
            ),
            ("latest", "latest (training state of DeepSpeed)"),
        ] {
            assert_eq!(training_state(file).as_deref(), Some(left));
        }
        for file in [
            "scheduler/scheduler_config.json",
            "scheduler/optimizer.pt",
            "scheduler",
            "scheduler_config.json",
            "optimizer",
            "optimizer/config.json",
            "Optimizer.pt",
            "my_optimizer.pt",
            "optimizer.pt.md",
            "rng_state_.pth",
            "latest.json",
            "latest/config.json",
            "global_step12",
            "global_step/x",
            "sampler.json",
            "pytorch_model.bin",
            "",
        ] {
            assert_eq!(training_state(file), None, "{file}");
        }
    }
}
