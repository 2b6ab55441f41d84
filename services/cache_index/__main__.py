"""`python -m services.cache_index`."""

from services.cache_index.service import CacheIndexService
from services.cache_index.settings import CacheIndexSettings
from shared.runtime.lifecycle import run_service

if __name__ == "__main__":
    run_service("cache-index", CacheIndexSettings, CacheIndexService)
