"""lm-eval's `TemplateLM` over `Session`: the model runs in this process, under any toggles."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from workbench.errors import RunError, ToggleError
from workbench.evals.prefixes import Tokens
from workbench.evals.scoring import Limits, Score, Wave, fit, greedy_tokens, plan, score_wave
from workbench.evals.store import Journal
from workbench.session import Session


@register_model("les-workbench")
class SessionLM(TemplateLM):
    """Scores and generates with one session.

    Parameters
    ----------
    session : Session
        Opened with `n_ctx` and `n_seq_max` large enough for many sequences; see `harness.eval_config`.
    max_length : int, optional
        Longest sequence scored; default: the model's own context, at most the session's.
    journal : Journal, optional
        Finished waves are kept there and not computed again: an interrupted evaluation resumes with equal scores.
    add_bos : bool, optional
        Begin every text with the model's BOS; None = as the model file says.
    info : dict, optional
        Merged into lm-eval's own results (`get_model_info`).
    progress : bool
        Show a bar on stderr.
    """

    backend = "causal"

    def __init__(
        self,
        session: Session,
        *,
        max_length: int | None = None,
        journal: Journal | None = None,
        add_bos: bool | None = None,
        info: dict[str, Any] | None = None,
        progress: bool = True,
    ) -> None:
        super().__init__()
        self.session = session
        config = session.config
        if config.n_ctx <= 0:
            raise ToggleError("evaluation needs n_ctx: the tokens of all sequences held at once")
        trained = session.metadata.get(f"{session.metadata['general.architecture']}.context_length")
        self.max_length = max_length or min(config.n_ctx, int(trained or config.n_ctx))
        if self.max_length > config.n_ctx:
            raise ToggleError(f"max_length={self.max_length} exceeds n_ctx={config.n_ctx}")
        self.limits = Limits(n_batch=config.n_batch, n_cells=config.n_ctx, n_seq=config.n_seq_max)
        self.journal = journal or Journal(None)
        self.info = info or {}
        self.progress = progress
        self.n_tokens = 0
        self._add_bos = session.metadata.get("tokenizer.ggml.add_bos_token") != "false" if add_bos is None else add_bos

    @property
    def eot_token_id(self) -> int:
        eos = self.session.eos
        if eos is None:
            raise RunError("this model has no end-of-text token")
        return eos

    @property
    def prefix_token_id(self) -> int:
        bos = self.session.bos
        return self.eot_token_id if bos is None else bos

    @property
    def max_gen_toks(self) -> int:
        """Tokens generated where a task does not say."""
        return 256

    @property
    def tokenizer_name(self) -> str:
        """Names the tokenizer in lm-eval's request cache."""
        tokenizer = {k: v for k, v in self.session.metadata.items() if k.startswith("tokenizer.")}
        return hashlib.sha256(repr(sorted(tokenizer.items())).encode()).hexdigest()[:16]

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval puts into its results' `config`."""
        return dict(self.info)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids; at most one BOS, whether the text (a chat template) or the model begins with it."""
        ids = self.session.tokenize(string, add_bos=False)
        bos = self.session.bos
        wanted = self._add_bos if add_special_tokens is None else add_special_tokens and self._add_bos
        if wanted and bos is not None and ids[:1] != [bos]:
            ids = [bos, *ids]
        return ids

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        context_ids, ids = super()._encode_pair(context, continuation)
        if not ids:  # a token spans the join: score the continuation as encoded alone
            context_ids, ids = self.tok_encode(context), self.tok_encode(continuation, add_special_tokens=False)
        return context_ids, ids

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model file's template, when one is asked for."""
        return self.session.metadata.get("tokenizer.chat_template") if chat_template else None

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Render messages with the model file's template.

        Raises
        ------
        RunError
            If the file carries none.
        """
        from llama_cpp.llama_chat_format import Jinja2ChatFormatter

        template = self.session.metadata.get("tokenizer.chat_template")
        if not template:
            raise RunError(f"{self.session.model_path}: the file carries no chat template")
        formatter = Jinja2ChatFormatter(
            template=template, eos_token="", bos_token="", add_generation_prompt=add_generation_prompt
        )
        return str(formatter(messages=cast(Any, chat_history)).prompt)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[Score]:
        pairs = [fit(context, continuation, self.max_length) for _, context, continuation in requests]
        scores: list[Score] = [(0.0, True)] * len(pairs)  # an empty continuation is certain
        numbers = [i for i, (_, continuation) in enumerate(pairs) if continuation]
        waves = plan((pairs[i] for i in numbers), self.limits)

        def compute(wave: Wave) -> list[list[Any]]:
            return [list(score) for score in score_wave(self.session, wave, self.limits)]

        for wave, kept in self._over(waves, compute, disable_tqdm):
            for request, (total, greedy) in zip(wave.requests, kept, strict=True):
                scores[numbers[request.place]] = (float(total), bool(greedy))
        for (key, _, _), score in zip(requests, scores, strict=True):
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, score)
        return scores

    def _over(self, waves: Sequence[Wave], compute: Callable[[Wave], Any], quiet: bool) -> Any:
        """Waves with their results, from the journal where it has them."""
        total = sum(wave.n_tokens for wave in waves)
        with tqdm(total=total, unit="tok", unit_scale=True, disable=quiet or not self.progress, desc="scoring") as bar:
            for wave in waves:
                key = wave.key(self.limits)
                kept = self.journal.get(key)
                if kept is None:
                    kept = compute(wave)
                    self.n_tokens += wave.n_tokens
                    self.journal.put(key, kept)
                yield wave, kept
                bar.update(wave.n_tokens)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in disjoint windows of `max_length`."""
        windows: list[tuple[Any, list[int], list[int]]] = []
        counts = []
        for (text,) in (request.args for request in requests):
            pieces = list(
                map(
                    make_disjoint_window,
                    get_rolling_token_windows(
                        token_list=self.tok_encode(text, add_special_tokens=False),
                        prefix_token=self.prefix_token_id,
                        max_seq_len=self.max_length,
                        context_len=1,
                    ),
                )
            )
            windows += [(None, list(context), list(target)) for context, target in pieces]
            counts.append(len(pieces))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        totals = [float(sum(next(scores)[0] for _ in range(count))) for count in counts]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Greedy text of every prompt, side by side, each until a stop string, an end token or its limit.

        Raises
        ------
        ToggleError
            When a task asks for sampling: a verdict needs one answer per prompt.
        """
        jobs: list[tuple[Tokens, tuple[str, ...], int]] = []
        for context, given in (request.args for request in requests):
            options = normalize_gen_kwargs(given, self.max_gen_toks)
            if options["do_sample"] and options["temperature"] > 0:
                raise ToggleError("this task samples its answers; only greedy generation is compared")
            limit = int(options["max_gen_toks"])
            room = self.max_length - limit
            if room < 1:
                raise ToggleError(f"max_gen_toks={limit} leaves no room for a prompt in {self.max_length} tokens")
            jobs.append((tuple(self.tok_encode(context)[-room:]), tuple(options["until"]), limit))
        texts = [""] * len(jobs)
        order = sorted(range(len(jobs)), key=lambda i: (-len(jobs[i][0]) - jobs[i][2], jobs[i][0], i))
        with tqdm(total=len(jobs), disable=disable_tqdm or not self.progress, desc="generating") as bar:
            for wave in self._packed(order, jobs):
                key = hashlib.sha256(repr([self.limits.n_batch, [jobs[i] for i in wave]]).encode()).hexdigest()[:32]
                kept = self.journal.get(key)
                if kept is None:
                    kept = self._generate([jobs[i] for i in wave])
                    self.journal.put(key, kept)
                for i, text in zip(wave, kept, strict=True):
                    texts[i] = postprocess_generated_text(text, list(jobs[i][1]), None)
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                bar.update(len(wave))
        return texts

    def _packed(self, order: Sequence[int], jobs: Sequence[tuple[Tokens, tuple[str, ...], int]]) -> list[list[int]]:
        waves: list[list[int]] = []
        cells = self.limits.n_cells + 1
        for i in order:
            need = len(jobs[i][0]) + jobs[i][2]
            if cells + need > self.limits.n_cells or len(waves[-1]) == self.limits.n_seq:
                waves.append([])
                cells = 0
            waves[-1].append(i)
            cells += need
        return waves

    def _generate(self, jobs: Sequence[tuple[Tokens, tuple[str, ...], int]]) -> list[str]:
        chosen = greedy_tokens(self.session, [j[0] for j in jobs], [j[2] for j in jobs], self.limits, self._stops(jobs))
        return [self.session.detokenize(tokens).decode(errors="replace") for tokens in chosen]

    def _stops(self, jobs: Sequence[tuple[Tokens, tuple[str, ...], int]]) -> Callable[[int, list[int]], bool]:
        texts = [b""] * len(jobs)

        def stop(which: int, tokens: list[int]) -> bool:
            if self.session.is_end(tokens[-1]):
                tokens.pop()
                return True
            texts[which] += self.session.detokenize(tokens[-1:])
            return any(mark and mark.encode() in texts[which] for mark in jobs[which][1])

        return stop
