package registry

import (
	"encoding/binary"
	"testing"
)

// message is one as a process of this version says it.
func message(slot, pid uint32) []byte {
	raw := make([]byte, messageSize)
	binary.LittleEndian.PutUint32(raw, messageMagic)
	binary.LittleEndian.PutUint16(raw[4:], messageVersion)
	binary.LittleEndian.PutUint16(raw[6:], messageSize)
	binary.LittleEndian.PutUint32(raw[8:], slot)
	binary.LittleEndian.PutUint32(raw[12:], pid)
	return raw
}

func TestParseMessage(t *testing.T) {
	good := message(3, 42)
	longer := append(message(3, 42), 1, 2, 3, 4)
	longer[4], longer[6] = 2, messageSize+4
	for name, tt := range map[string]struct {
		raw  []byte
		good bool
	}{
		"this version's": {good, true},
		"a later one's":  {longer, true},
		"none":           {nil, false},
		"cut off":        {good[:messageSize-1], false},
		"too long":       {make([]byte, maxMessage+1), false},
		"another magic":  {append([]byte("GET "), good[4:]...), false},
		"another size":   {append(message(3, 42), 0), false},
		"version 0":      {append([]byte("NVGR\x00\x00\x10\x00"), good[8:]...), false},
	} {
		claim, err := ParseMessage(tt.raw)
		if (err == nil) != tt.good || tt.good && claim != (Claim{Slot: 3, InnerPID: 42}) {
			t.Errorf("%s: got %+v, %v", name, claim, err)
		}
	}
}

func FuzzParseMessage(f *testing.F) {
	f.Add(message(0, 1))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		claim, err := ParseMessage(raw)
		if err == nil && (len(raw) < messageSize || claim.Slot != binary.LittleEndian.Uint32(raw[8:])) {
			t.Errorf("%x became %+v", raw, claim)
		}
	})
}

func FuzzParseCgroups(f *testing.F) {
	f.Add("0::/kubepods/besteffort/pod" + uid + "/" + id + "\n")
	f.Fuzz(func(t *testing.T, content string) {
		if place := ParseCgroups(content); place.PodUID == "" && place.Container != "" {
			t.Errorf("%q is a container without a pod: %+v", content, place)
		}
	})
}
