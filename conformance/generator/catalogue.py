"""All modules that make vectors, in the order in which they run: good ones first, since bad ones are made from them."""
from . import links_valid_structure, links_valid_codings, links_valid_streams  # noqa: F401
from . import links_valid_pieces, links_valid_twins, links_apply, links_layout, links_limits  # noqa: F401
from . import links_extension, links_described, links_described_bits, links_pieces  # noqa: F401
from . import links_invalid_primitives, links_invalid_header, links_invalid_streams, links_invalid_frames  # noqa: F401
from . import links_invalid_index, links_invalid_segment, links_invalid_codings  # noqa: F401
from . import links_order, links_order_apply, links_order_index, links_coded_bytes, links_resources  # noqa: F401
from . import links_folders  # noqa: F401
from . import documents, documents_routes, documents_assets, documents_folders, documents_escapes  # noqa: F401
from . import chains_valid, chains_fallback, chains_invalid  # noqa: F401
from . import chains_held, chains_routes, chains_parts, chains_assets  # noqa: F401
from . import chains_accept, chains_direct, chains_shards, chains_folders  # noqa: F401
from . import signatures_notes, signatures_lines, signatures_reading, signatures_seen  # noqa: F401
from . import signatures_own, signatures_chains, signatures_refused  # noqa: F401
from . import chains_layouts  # noqa: F401
from . import in_place_valid, in_place_record, in_place_refused, in_place_order  # noqa: F401
from . import chains_in_place, chains_ignored  # noqa: F401
from . import links_decisions, chains_decisions, layouts_decisions  # noqa: F401
from . import links_sequences, links_stretches, links_exponents  # noqa: F401
