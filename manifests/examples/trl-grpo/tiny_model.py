"""Make a small Llama with random weights in a folder: `python tiny_model.py DIR`.

12 million parameters, the same ones for the same seed. Its tokens are single printable characters,
so a model that knows nothing writes a digit one time in ten.
"""

import argparse
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"


def tokenizer() -> PreTrainedTokenizerFast:
    characters = string.digits + string.ascii_letters + string.punctuation + " "
    vocabulary = {token: number for number, token in enumerate([BOS, EOS, PAD, *characters])}
    characterwise = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    characterwise.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=characterwise, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )


def model(vocabulary_size: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=512,
        intermediate_size=1280,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).to(torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    words = tokenizer()
    words.save_pretrained(arguments.folder)
    model(len(words), arguments.seed).save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
