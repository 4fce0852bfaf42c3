// SPDX-License-Identifier: Apache-2.0

package driverlib

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/machine"
)

// defaultDirs are the directories that the dynamic loader searches last.
var defaultDirs = []string{
	"/lib/" + machine.Multiarch, "/usr/lib/" + machine.Multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// loaderCache is the dynamic loader's cache.
const loaderCache = "/etc/ld.so.cache"

// Find returns the driver's libraries for a program with this environment. Find
// searches in the order of the interposer. Find omits libraries that it does not find.
func Find(getenv func(string) string) Paths {
	dirs := strings.FieldsFunc(getenv("LD_LIBRARY_PATH"), func(r rune) bool { return r == ':' || r == ';' })
	cache, err := os.ReadFile(loaderCache)
	if err != nil {
		cache = nil
	}
	found := Paths{}
	for _, kind := range Kinds {
		var candidates []string
		for _, dir := range dirs {
			candidates = append(candidates, filepath.Join(dir, kind.Name))
		}
		candidates = append(candidates, cached(cache, kind.Name)...)
		for _, dir := range defaultDirs {
			candidates = append(candidates, filepath.Join(dir, kind.Name))
		}
		for _, path := range candidates {
			if isForeign(path) {
				found[kind.Name] = path
				break
			}
		}
	}
	return found
}

// isForeign reports whether a file is a library other than the interposer's. isForeign checks
// nothing else, because the reader of the library checks the rest.
func isForeign(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return false
	}
	elf, err := openELF(file)
	return err == nil && elf.Section(noteName) == nil
}

// The loader's cache starts with cacheMagic and a header, followed by entries.
const (
	cacheMagic     = "glibc-ld.so.cache1.1"
	cacheHeadSize  = 48
	cacheEntrySize = 24
)

// cached returns the paths of a library in the loader's cache. In the file, a cache of
// the older format may precede the cache.
func cached(cache []byte, name string) []string {
	start := bytes.Index(cache, []byte(cacheMagic))
	if start < 0 || len(cache)-start < cacheHeadSize {
		return nil
	}
	cache = cache[start:]
	count := uint64(binary.LittleEndian.Uint32(cache[len(cacheMagic):]))
	entries := cache[cacheHeadSize:]
	count = min(count, uint64(len(entries)/cacheEntrySize))
	var paths []string
	for i := range count {
		entry := entries[i*cacheEntrySize:]
		if text(cache, binary.LittleEndian.Uint32(entry[4:])) == name {
			paths = append(paths, text(cache, binary.LittleEndian.Uint32(entry[8:])))
		}
	}
	return paths
}

// text returns the string at an offset, "" if no string is at the offset.
func text(data []byte, offset uint32) string {
	if uint64(offset) >= uint64(len(data)) {
		return ""
	}
	value, _, whole := bytes.Cut(data[offset:], []byte{0})
	if !whole {
		return ""
	}
	return string(value)
}
