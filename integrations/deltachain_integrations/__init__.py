"""Deltachain in trainers and inference engines. Each module is for one of them, and imported by
name:

    from deltachain_integrations.transformers import PublishCallback

They follow interfaces of these programs, some of them private, which change often; `deltachain`
does not. They use only what `deltachain` offers to everybody.
"""
