"""Deltachain in trainers and inference engines. Each module is for one program, and is imported by
name:

    from deltachain_integrations.transformers import PublishCallback

The modules follow interfaces of these programs, some of them private, which change often; the
interface of `deltachain` does not. They use only the public interface of `deltachain`.
"""
