package limits

import (
	"bytes"
	"io"
)

// For the fuzzers, which have no time for files.

func Decode(page []byte) ([]Device, error) {
	devices, _, err := readLimitsFrom(bytes.NewReader(page), int64(len(page)))
	return devices, err
}

func Encode(devices []Device) ([]byte, error) { return newLimitsPage(devices) }

// DecodeUsage takes all slots to be held.
func DecodeUsage(page io.ReaderAt, size int64) (Usage, error) {
	return readUsageFrom(page, size, func(int64) (bool, error) { return true, nil })
}
