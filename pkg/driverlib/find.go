package driverlib

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
)

// defaultDirs are where the dynamic loader looks last.
var defaultDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// loaderCache is the dynamic loader's.
const loaderCache = "/etc/ld.so.cache"

// Find returns the driver's libraries that a program with this environment would be
// given, as the interposer finds them in it. Libraries that are not found are left out.
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

// isForeign reports whether a file is a library that is not the interposer's. What is
// wrong with it beyond that is for its reader to say.
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

// Of the loader's cache: its name, its head and its entries.
const (
	cacheMagic     = "glibc-ld.so.cache1.1"
	cacheHeadSize  = 48
	cacheEntrySize = 24
)

// cached returns the paths that the loader's cache has for a library. An older cache
// may stand before it in the file.
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

// text returns the string at an offset, "" where there is none.
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
