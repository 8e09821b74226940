/* Dictionaries: open addressing, a power of two of places, at most three quarters of them used. */
#include "objects.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    PyObject *key;   /* NULL: never used; else strong, unless it is `removed` */
    PyObject *value;
    size_t hash;
} Entry;

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    pthread_mutex_t mutex; /* of all members below */
    size_t places;         /* 0 or a power of two */
    size_t used;           /* places that are not free, removed ones included */
    size_t size;
    Entry *entries;
} Dict;

/* In place of the key of an entry that was removed. Only its address is used: it is never visited, nor counted. */
static char removed_mark;
#define REMOVED ((PyObject *)(void *)&removed_mark)

static bool is_taken(const Entry *entry)
{
    return entry->key != NULL && entry->key != REMOVED;
}

static size_t hash_of(PyObject *key)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (PyUnicode_CheckExact(key)) {
        for (const char *c = PyUnicode_AsUTF8(key); *c != '\0'; c++) {
            hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        }
    } else {
        hash = ((uintptr_t)key >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    }
    return (size_t)(hash ^ (hash >> 32));
}

static bool is_same(PyObject *a, PyObject *b)
{
    return a == b
        || (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b)
            && strcmp(PyUnicode_AsUTF8(a), PyUnicode_AsUTF8(b)) == 0);
}

/* The entry of the key; else the one to put it into, or NULL if there are no places. The mutex is held, as for all
 * below. */
static Entry *find(Dict *self, PyObject *key, size_t hash)
{
    if (self->places == 0) {
        return NULL;
    }
    Entry *reusable = NULL;
    for (size_t i = hash;; i++) {
        Entry *entry = &self->entries[i & (self->places - 1)];
        if (entry->key == NULL) {
            return reusable != NULL ? reusable : entry;
        }
        if (entry->key == REMOVED) {
            if (reusable == NULL) {
                reusable = entry;
            }
        } else if (entry->hash == hash && is_same(entry->key, key)) {
            return entry;
        }
    }
}

/* Makes room for one more. */
static bool grow(Dict *self)
{
    if (4 * (self->used + 1) <= 3 * self->places) {
        return true;
    }
    size_t places = 8;
    while (places < 3 * self->size) {
        places *= 2;
    }
    Entry *entries = calloc(places, sizeof *entries);
    if (entries == NULL) {
        return false;
    }
    for (size_t i = 0; i < self->places; i++) {
        if (is_taken(&self->entries[i])) {
            size_t to = self->entries[i].hash;
            while (entries[to & (places - 1)].key != NULL) {
                to++;
            }
            entries[to & (places - 1)] = self->entries[i];
        }
    }
    free(self->entries);
    self->entries = entries;
    self->places = places;
    self->used = self->size;
    return true;
}

static int dict_traverse(PyObject *op, visitproc visit, void *arg)
{
    Dict *self = (Dict *)op;
    Py_VISIT(Py_TYPE(op));
    for (size_t i = 0; i < self->places; i++) {
        Entry *entry = &self->entries[i];
        if (is_taken(entry)) {
            Py_VISIT(entry->key);
            Py_VISIT(entry->value);
        }
    }
    return 0;
}

static int dict_clear(PyObject *op)
{
    Dict *self = (Dict *)op;
    lock(&self->mutex);
    Entry *entries = self->entries;
    size_t places = self->places;
    self->entries = NULL;
    self->places = 0;
    self->used = 0;
    self->size = 0;
    unlock(&self->mutex);
    for (size_t i = 0; i < places; i++) {
        if (is_taken(&entries[i])) {
            Py_DECREF(entries[i].key);
            Py_DECREF(entries[i].value);
        }
    }
    free(entries);
    return 0;
}

static void dict_dealloc(PyObject *op)
{
    Dict *self = (Dict *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PyObject_ClearWeakRefs(op);
    dict_clear(op);
    pthread_mutex_destroy(&self->mutex);
    census_died(DICT, self->serial);
    type->tp_free(op);
    Py_DECREF(type);
}

PyTypeObject *dict_type(PyObject *module)
{
    PyType_Slot slots[] = {
        { Py_tp_traverse, SLOT(dict_traverse) },
        { Py_tp_clear, SLOT(dict_clear) },
        { Py_tp_dealloc, SLOT(dict_dealloc) },
        { 0, NULL },
    };
    PyType_Spec spec = {
        .name = "objects.Dict",
        .basicsize = sizeof(Dict),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, NULL);
}

PyObject *Dict_New(PyTypeObject *type)
{
    Dict *self = (Dict *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    pthread_mutex_init(&self->mutex, NULL);
    self->serial = census_born(DICT);
    return (PyObject *)self;
}

int Dict_Set(PyObject *op, PyObject *key, PyObject *value)
{
    Dict *self = (Dict *)op;
    size_t hash = hash_of(key);
    PyObject *old = NULL;
    lock(&self->mutex);
    bool room = grow(self);
    if (room) {
        Entry *entry = find(self, key, hash);
        if (is_taken(entry)) {
            old = entry->value;
        } else {
            self->used += entry->key == NULL;
            self->size++;
            entry->key = Py_NewRef(key);
            entry->hash = hash;
        }
        entry->value = Py_NewRef(value);
    }
    unlock(&self->mutex);
    Py_XDECREF(old);
    if (!room) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

PyObject *Dict_Get(PyObject *op, PyObject *key)
{
    Dict *self = (Dict *)op;
    size_t hash = hash_of(key);
    PyObject *value = NULL;
    lock(&self->mutex);
    Entry *entry = find(self, key, hash);
    if (entry != NULL && is_taken(entry)) {
        value = Py_NewRef(entry->value);
    }
    unlock(&self->mutex);
    return value;
}

int Dict_Remove(PyObject *op, PyObject *key)
{
    Dict *self = (Dict *)op;
    size_t hash = hash_of(key);
    PyObject *old_key = NULL, *old_value = NULL;
    lock(&self->mutex);
    Entry *entry = find(self, key, hash);
    if (entry != NULL && is_taken(entry)) {
        old_key = entry->key;
        old_value = entry->value;
        entry->key = REMOVED;
        entry->value = NULL;
        self->size--;
    }
    unlock(&self->mutex);
    if (old_key == NULL) {
        return 0;
    }
    Py_DECREF(old_key);
    Py_DECREF(old_value);
    return 1;
}

Py_ssize_t Dict_Size(PyObject *op)
{
    Dict *self = (Dict *)op;
    lock(&self->mutex);
    size_t size = self->size;
    unlock(&self->mutex);
    return (Py_ssize_t)size;
}
